"""Register a kernel for each operator of aten: the rows of all families, and kernels by schema.

A row (`table`) gives an operator a kernel written by hand, leaves it to PyTorch, or refuses it. All
other operators that PyTorch has for the CPU get a kernel made from their schema (`from_schema`),
behind the rules of their row (`rules`). To find out what happens to an operator:

    >>> from simgpu._ops.registry import facts
    >>> facts("median")

Sparse and nested tensors have registrations of their own (`sparse_and_nested`), as has autocast.
docs/architecture.md, "A kernel for a new operator", explains how to add a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from simgpu._core import hooks as core_hooks
from simgpu._core.launch import HOST_KEYS
from simgpu._core.operators import found_no_kernel
from simgpu._native.dispatch_tables import use_cpu_kernels, written
from simgpu._ops import (  # noqa: F401  # each declares the rows of its family
    attention,
    autocast,
    copies,
    elementwise,
    fourier,
    images,
    indexing,
    linalg,
    losses,
    norms,
    products,
    random,
    reductions,
    rnn,
    sparse_and_nested,
)
from simgpu._ops.calls import composed_where_refused, overload, register_kernels
from simgpu._ops.from_schema import as_it_is, device_kernel
from simgpu._ops.program_kernels import check_not_for_cpu_only
from simgpu._ops.rules import checked, ruled
from simgpu._ops.table import Layout, Op, PythonKernel, facts_of, named, row
from simgpu._util.naming import DEVICE_TYPE, visible_text
from simgpu.errors import UnsupportedError

_KEY = "PrivateUse1"
# Tensors of quantized dtypes are under a key of their own.
_QUANTIZED_KEY = "QuantizedPrivateUse1"

# Operators that a simulated device refuses. Their results cannot be on a device at all: without
# this they would end in the words of whatever PyTorch tries next.

_NO_QUANTIZED = (
    "tensors of quantized dtypes cannot be on a simulated device. Quantize on the CPU, or as "
    "torch.fake_quantize_per_tensor_affine and torch.fake_quantize_per_channel_affine do"
)
row("quantize_per_*", "_make_per_*", reason=_NO_QUANTIZED)
row(
    *("*mkldnn*", "_add_relu[_]", "_spdiags", "histogram", "slow_conv3d_forward"),
    *("_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors"),
    *("_upsample_lanczos2d_aa", "_upsample_lanczos2d_aa_backward"),
    reason="PyTorch has it only for the CPU, and raises on CUDA as well. Move the tensor to the "
    "CPU first",
)


def facts(name: str) -> Op:
    """All that is special about an operator: "median" (its default overload), or "median.dim"."""
    return facts_of(overload(name))


def _refusing(reason: str) -> PythonKernel:
    """What runs in place of an operator that is handed to it."""

    def refuse(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
        name = op._name.removesuffix(".default")
        raise UnsupportedError(
            f"Could not run '{name}' with arguments from the '{DEVICE_TYPE}' backend: {reason}"
        )

    return refuse


def _kernels() -> Iterator[tuple[str, PythonKernel]]:
    """Every aten operator that runs on a simulated device, with its kernel."""
    by_hand = {**named("kernel"), **named("make")}
    kinds = named("kind")
    metadata = [name for name, kind in kinds.items() if kind == "metadata"]
    done = {*by_hand, *kinds}
    for name in filter(_is_known, by_hand):
        one = overload(name)
        found = facts_of(one)
        yield name, ruled(one, found.kernel or found.make(one))  # type: ignore[misc]
    for name in metadata:
        yield name, as_it_is(overload(name))
    for name in _aten_names("CPU"):
        if name not in done:
            done.add(name)
            one = overload(name)
            reason = facts_of(one).reason
            yield (
                name,
                partial(_refusing(reason), one) if reason else ruled(one, device_kernel(one)),
            )
    for name in _aten_names("CompositeExplicitAutograd"):
        if name not in done and not name.endswith("out"):
            one = overload(name)
            if not _prefer_decomposition(one):
                kernel = ruled(one, composed_where_refused(one, device_kernel(one)))
                yield name, _composed_while_traced(one, kernel)


def _is_known(name: str) -> bool:
    """Whether this release of PyTorch has an operator."""
    packet, _, overload_name = name.partition(".")
    found = getattr(torch.ops.aten, packet, None)
    return found is not None and (overload_name or "default") in found.overloads()


def _aten_names(key: str) -> Iterator[str]:
    """The operators for which PyTorch itself has a kernel under the dispatch key `key`."""
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
        namespace, _, rest = name.partition("::")
        if namespace == "aten":
            yield rest


def _prefer_decomposition(op: torch._ops.OpOverload) -> bool:
    """Whether PyTorch's composite of an operator should run instead of a kernel of ours."""
    arguments = op._schema.arguments
    names = {argument.name for argument in arguments}
    views = any(a.alias_info and not a.alias_info.is_write for a in arguments)
    seeded = torch.Tag.nondeterministic_seeded in op.tags and "generator" not in names
    computes = any("Tensor" in str(a.type) for a in arguments)
    makes = "device" in names
    draws = "generator" in names  # made first, then filled in place
    return views or seeded or draws or torch.Tag.inplace_view in op.tags or not (computes or makes)


def _composed_while_traced(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, or PyTorch's composite of `op` while its parts are what a trace records."""
    if not facts_of(op).recorded_in_parts:
        return kernel

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch._C._is_tracing():  # not what kernels do for a call
            return op._handle.redispatch_boxed(HOST_KEYS, *args, **kwargs)
        return kernel(*args, **kwargs)

    return run


def _composite_kernels(layout: Layout) -> Iterator[tuple[str, PythonKernel]]:
    """Every aten operator that PyTorch has for this kind of composite on the CPU, with ours."""
    yield "_to_copy", sparse_and_nested.to_copy
    yield "copy_", sparse_and_nested.copy_
    kinds = named("kind", layout)
    for name, kind in kinds.items():
        if kind == "metadata":
            yield name, sparse_and_nested.metadata_kernel(layout, overload(name))
    for name in _aten_names(f"{layout}CPU"):
        if name not in ("_to_copy", "copy_", *kinds):
            one = overload(name)
            yield name, checked(one, sparse_and_nested.composite_kernel(layout, one))


# Dispatch keys of tensors that are not strided, or are quantized.
_OTHER_KEYS = [f"{layout}{of}" for layout in sparse_and_nested.KEYS for of in ("CPU", _KEY)]
_OTHER_KEYS += ["QuantizedCPU", "MkldnnCPU"]


def _missing_kernels(key: str) -> Iterator[tuple[str, PythonKernel]]:
    """What refuses operators of strided tensors that run the CPU's kernel on a device.

    The dispatcher's own report first looks whether its tables are as it fills them, and ends in an
    assertion where `use_cpu_kernels` has written.
    """

    def refuse(name: str, *_: Any, **__: Any) -> Any:
        backend = visible_text(key.replace(_KEY, DEVICE_TYPE))
        raise NotImplementedError(
            f"Could not run '{name}' with arguments from the '{backend}' backend: PyTorch has no "
            "kernel for it"
        )

    for name in written:
        if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key):
            yield name.removeprefix("aten::"), partial(refuse, name)


def register() -> list[torch.library.Library]:
    """Register everything; the registrations last as long as the returned libraries."""
    above_autograd = named("above_autograd").items()
    anything = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    anything.fallback(_fallback, _KEY)  # type: ignore[no-untyped-call]
    anything.fallback(_refusing(_NO_QUANTIZED), _QUANTIZED_KEY)  # type: ignore[no-untyped-call]
    libraries = [
        register_kernels(_KEY, _kernels()),
        *(
            register_kernels(f"{layout}{_KEY}", _composite_kernels(layout))
            for layout in sparse_and_nested.KEYS
        ),
        *(
            register_kernels(key, above_autograd, with_keyset=True)
            for key in (f"Autograd{_KEY}", _KEY)
        ),
        anything,
    ]
    kinds = named("kind").items()
    use_cpu_kernels(overload(name) for name, kind in kinds if kind == "metadata")
    libraries += [register_kernels(key, _missing_kernels(key)) for key in _OTHER_KEYS]
    core_hooks.wrong_on_meta.update(named("wrong_on_meta"))
    return libraries


_fallback_kernels: dict[torch._ops.OpOverload, PythonKernel] = {}


def _fallback(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Operators without a registration, such as those of other libraries: the host's kernel."""
    kernel = _fallback_kernels.get(op)
    check_not_for_cpu_only(op)
    if kernel is None:
        kernel = _fallback_kernels[op] = device_kernel(op)
    try:
        return kernel(*args, **kwargs)
    except NotImplementedError as error:
        if not found_no_kernel(error, op):
            raise
        raise UnsupportedError(
            f"'{op._name}' cannot run on a simulated device, which computes with the CPU's "
            "kernels: PyTorch has none for this operator"
        ) from None
