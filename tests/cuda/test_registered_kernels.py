"""Kernels that a program registers for CUDA with torch.library run on simulated devices.

On CUDA a kernel registered for it goes before one for all devices, and before PyTorch's own. Every
kernel here multiplies: the one for all devices by 2, that of CUDA by the drawn factor.
"""

import contextlib
import importlib
import sys
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import library

import simgpu
from simgpu._cuda import extensions, registered_kernels
from simgpu._ops import program_kernels

SPACE = "simgpu_registered"
X = torch.tensor([3.0, 5.0])


def scaling(factor):
    return lambda x: x * factor


def by_the_librarys_key(own, factor):
    kernels = library.Library(SPACE, "IMPL", "CUDA")
    kernels.impl("op", scaling(factor))
    return kernels


def by_keyset(own, factor):
    def kernel(keys, x):
        assert keys.has(torch._C.DispatchKey.PrivateUse1)  # of the tensor, to dispatch on
        return x * factor

    own.impl("op", kernel, "CUDA", with_keyset=True)


def below_autograd(own, factor):
    def kernel(keys, x):
        below = keys & torch._C._after_autograd_keyset
        return torch.ops.simgpu_registered.op.default.redispatch(below, x) * (factor / 2)

    own.impl("op", kernel, "AutogradCUDA", with_keyset=True)


def twice(own, factor):
    own.impl("op", scaling(factor + 1), "CUDA")
    own.impl("op", scaling(factor), "CUDA")


WAYS = {
    "Library.impl": lambda own, factor: own.impl("op", scaling(factor), "CUDA"),
    "a library's key": by_the_librarys_key,
    "with_keyset": by_keyset,
    "below autograd": below_autograd,
    "twice": twice,
    "impl with a device": lambda own, factor: library.impl(f"{SPACE}::op", "cuda", lib=own)(
        scaling(factor)
    ),
    "register_kernel": lambda own, factor: library.register_kernel(
        f"{SPACE}::op", "cuda", scaling(factor), lib=own
    ),
}


@contextlib.contextmanager
def operators():
    """A library with an operator that has a kernel for all devices."""
    with library._scoped_library(SPACE, "FRAGMENT") as own:
        own.define("op(Tensor x) -> Tensor")
        own.impl("op", scaling(2), "CompositeExplicitAutograd")
        yield own


def factor_on(device, op=None):
    """What an operator multiplies by on a device."""
    factors = (op or torch.ops.simgpu_registered.op)(X.to(device)).cpu() / X
    assert factors[0] == factors[1]
    return factors[0].item()


@pytest.mark.parametrize("way", WAYS)
@given(early=st.booleans(), factor=st.integers(3, 9))
def test_kernel_for_cuda_runs_in_a_block_while_its_library_lives(way, early, factor):
    with operators() as own:
        kept = WAYS[way](own, factor) if early else None
        for _ in range(2):
            with simgpu.as_cuda(2):
                if not early:
                    kept = WAYS[way](own, factor)
                    early = True
                assert factor_on("cuda:1") == factor
                assert factor_on("cpu") == 2
            with simgpu.devices(2):
                assert factor_on("simgpu:1") == 2
        with simgpu.as_cuda(1):
            assert factor_on("cuda") == factor
            if kept is not None:
                kept._destroy()
                assert factor_on("cuda") == 2
    with simgpu.as_cuda(1), operators():  # another library of the same name
        assert factor_on("cuda") == 2


@given(early=st.booleans(), factor=st.integers(3, 9), by_name=st.booleans())
def test_custom_op_runs_its_kernel_for_cuda(early, factor, by_name):
    def define():
        @library.custom_op(f"{SPACE}::own", mutates_args=(), device_types=None)
        def op(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        if by_name:
            library.register_kernel(f"{SPACE}::own", "cuda", scaling(factor))
        else:
            op.register_kernel("cuda", scaling(factor))
        op.register_fake(torch.empty_like)
        op.register_autograd(lambda ctx, grad: grad * 100)
        op.register_autocast("cuda", torch.float16)
        return op

    op = define() if early else None
    with simgpu.as_cuda(2):
        op = op or define()
        assert factor_on("cuda:1", op) == factor
        assert factor_on("cpu", op) == 2
        x = X.to("cuda:1").requires_grad_()
        op(x).sum().backward()
        assert x.grad.tolist() == [100.0, 100.0]
        with torch.autocast("cuda"):
            assert op(x).dtype is torch.float16
        assert op(x).dtype is torch.float32


@pytest.mark.parametrize("name", ["neg", "view", "scaled_dot_product_attention"])
@given(early=st.booleans())
def test_kernel_of_aten_is_replaced_until_the_library_ends(name, early):
    def call():
        x = torch.ones(1, 1, 2, 4, device="cuda:1", requires_grad=True)
        op = getattr(torch.ops.aten, name)
        arguments = {"view": ([8, 1],), "scaled_dot_product_attention": (x, x)}
        return op(x, *arguments.get(name, ())).detach().cpu().flatten()[0].item()

    ended = []  # a program may have them for longer

    def cover(own):
        ended.append(own)
        own.impl(name, lambda x, *_: torch.full_like(x, 9.0), "CUDA")

    with contextlib.ExitStack() as stack:
        if early:
            cover(stack.enter_context(library._scoped_library("aten", "IMPL")))
        with simgpu.as_cuda(2):
            if not early:
                before = call()
                cover(stack.enter_context(library._scoped_library("aten", "IMPL")))
            assert call() == 9.0
            stack.close()
            after = call()
            assert after == {"neg": -1.0}.get(name, 1.0)
            assert early or after == before
            assert "registered_kernels" not in str(library.get_kernel(f"aten::{name}", "CUDA"))


@given(name=st.sampled_from(["relu", "ceil"]))
def test_replaced_kernel_can_call_the_original(name):
    """The first is one operator of others in every build, the second a kernel in one for CUDA."""
    operator = getattr(torch, name)
    with simgpu.as_cuda(2):
        covered = library.get_kernel(f"aten::{name}", "CUDA")

        def kernel(keys, x):
            return covered.call_boxed(keys, x) * 5

        with library._scoped_library("aten", "IMPL") as own:
            own.impl(name, kernel, "CUDA", with_keyset=True)
            assert factor_on("cuda:1", operator) == 5
            assert factor_on("cpu", operator) == 1
        assert factor_on("cuda:1", operator) == 1


def test_fallthrough_kernel_falls_through(cuda):
    with operators() as own:
        own.impl("op", library.fallthrough_kernel, "AutogradCUDA")
        assert factor_on("cuda:1") == 2


def test_kernels_that_pytorch_registers_are_not_used():
    """Such as those that it writes in Triton, to replace kernels of its own."""
    import torch.distributed._symmetric_memory  # has registered some

    of_pytorch = "symm_mem::fused_all_gather_matmul"
    with simgpu.as_cuda(1):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(of_pytorch, "CUDA")
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(of_pytorch, "PrivateUse1")


@given(uses=st.booleans())
def test_library_of_an_ended_operator_is_released(uses):
    own, kernels = library.Library(SPACE, "FRAGMENT"), library.Library(SPACE, "IMPL", "CUDA")
    try:
        own.define("op(Tensor x) -> Tensor")
        kernels.impl("op", scaling(3))
        if uses:
            with simgpu.as_cuda(1):
                assert torch.equal(torch.ops.simgpu_registered.op(X.cuda()).cpu(), X * 3)
        own._destroy()
        with simgpu.as_cuda(1):
            assert torch.equal((X.cuda() * 3).cpu(), X * 3)
    finally:
        kernels._destroy()
        own._destroy()


def cpu_by_key(own, kernel):
    own.impl("only", kernel, "CPU")


def cpu_by_register_kernel(own, kernel):
    library.register_kernel(f"{SPACE}::only", "cpu", kernel, lib=own)


@contextlib.contextmanager
def operator_for_the_cpu(register=cpu_by_key):
    with library._scoped_library(SPACE, "FRAGMENT") as own:
        own.define("only(Tensor x) -> Tensor")
        register(own, scaling(2))
        yield own


@pytest.mark.parametrize("register", [cpu_by_key, cpu_by_register_kernel])
@given(by_cuda=st.booleans())
def test_operator_for_the_cpu_only_is_refused(register, by_cuda):
    with (
        operator_for_the_cpu(register),
        (simgpu.as_cuda if by_cuda else simgpu.devices)(2) as found,
    ):
        only = torch.ops.simgpu_registered.only
        backend = "CUDA" if by_cuda else "simgpu"
        words = f"Could not run '{SPACE}::only' with arguments from the '{backend}' backend[.]"
        with pytest.raises(NotImplementedError, match=words) as caught:
            only(X.to(found[1]))
        assert f"SIMGPU_CPU_KERNELS={SPACE}::only" in str(caught.value)
        assert factor_on("cpu", only) == 2


@pytest.mark.parametrize("pattern", [f"{SPACE}::only", f"{SPACE}::*", f"other::op, {SPACE}::on*"])
def test_operator_for_the_cpu_runs_where_a_variable_allows_it(cuda, monkeypatch, pattern):
    with operator_for_the_cpu():
        monkeypatch.setenv("SIMGPU_CPU_KERNELS", "other::*")
        with pytest.raises(NotImplementedError):
            factor_on(cuda[1], torch.ops.simgpu_registered.only)
        monkeypatch.setenv("SIMGPU_CPU_KERNELS", pattern)
        assert factor_on(cuda[1], torch.ops.simgpu_registered.only) == 2


def test_operator_with_a_kernel_for_cuda_uses_its_cpu_kernel_elsewhere():
    with operator_for_the_cpu() as own:
        own.impl("only", scaling(3), "CUDA")
        only = torch.ops.simgpu_registered.only
        with simgpu.devices(2):
            assert factor_on("simgpu:1", only) == 2
        with simgpu.as_cuda(2):
            assert factor_on("cuda:1", only) == 3


def test_custom_op_for_the_cpu_is_refused(cuda):
    @library.custom_op(f"{SPACE}::for_cpu", mutates_args=(), device_types="cpu")
    def for_cpu(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @library.custom_op(f"{SPACE}::for_all", mutates_args=())
    def for_all(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    assert factor_on(cuda[1], for_all) == 2
    with pytest.raises(NotImplementedError, match="from the 'CUDA' backend"):
        factor_on(cuda[1], for_cpu)


def test_operator_of_a_compiled_library_runs_on_devices(cuda, monkeypatch):
    """A library's build for the CPU has no kernels for CUDA, which its build for GPUs has."""
    with operator_for_the_cpu():
        monkeypatch.setattr(
            program_kernels, "_registered", lambda *_: "registered at /build/csrc/only.cpp:12 [...]"
        )
        assert factor_on(cuda[1], torch.ops.simgpu_registered.only) == 2


def test_the_allocator_of_devices_is_the_one_that_graphs_of_cuda_need(cuda):
    """torch.compile(mode="max-autotune") asks even for a graph of the CPU."""
    assert torch._C._cuda_cudaCachingAllocator_is_enabled()


FACTORS = {"CPU": 3, "CompositeExplicitAutograd": 5, "CUDA": 7}


@given(keys=st.sets(st.sampled_from(list(FACTORS)), min_size=1), early=st.booleans())
def test_library_in_the_table_computes_by_its_kernels_for_the_cpu(keys, early):
    with (
        mock.patch.object(registered_kernels, "COMPUTED_BY_CPU", {SPACE}),
        library._scoped_library(SPACE, "FRAGMENT") as own,
        contextlib.ExitStack() as stack,
    ):
        own.define("op(Tensor x) -> Tensor")
        if not early:
            stack.enter_context(simgpu.as_cuda(2))
        for key in filter(keys.__contains__, FACTORS):
            own.impl("op", scaling(FACTORS[key]), key)
        if early:
            stack.enter_context(simgpu.as_cuda(2))
        x = X.to("cuda:1")
        with simgpu.trace() as seen:
            y = torch.ops.simgpu_registered.op(x)
        assert torch.equal(y.cpu(), X * next(FACTORS[key] for key in FACTORS if key in keys))
        assert [each.op == f"{SPACE}.op" for each in seen] == ["CPU" in keys]
        stack.close()
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"{SPACE}::op", "PrivateUse1")


def test_library_in_the_table_sees_no_gpu_while_it_chooses(tmp_path, monkeypatch):
    """Another module does, and so does the library before and after, also where it fails."""
    asks = "import torch\ndef seen():\n    return torch.cuda.is_available()\nsaw = [seen()]\n"
    (tmp_path / "other_one.py").write_text(asks)
    (tmp_path / "chooser").mkdir()
    (tmp_path / "chooser" / "__init__.py").write_text(asks)
    more = (
        "import chooser, other_one\nchooser.saw += seen(), chooser.seen(), other_one.seen()\n1 / 0"
    )
    (tmp_path / "chooser" / "native.py").write_text(asks + more)
    monkeypatch.syspath_prepend(tmp_path)
    row = extensions.Library("chooser.native", "", "")
    with mock.patch.object(extensions, "LIBRARIES", (row,)), mock.patch.dict(sys.modules):
        with simgpu.as_cuda(1):
            with pytest.raises(ZeroDivisionError):
                importlib.import_module("chooser.native")
            chooser = importlib.import_module("chooser")
            assert [*chooser.saw, chooser.seen()] == [True, False, False, True, True]
        assert not chooser.seen()
