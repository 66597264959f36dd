"""simgpu.as_cuda(): what a program sees that names CUDA, and that nothing of it stays behind.

Whole programs are in tests/full/programs; the functions of torch.cuda in test_names.
"""

import atexit
import contextlib
import copy
import io
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch import randn as imported_before_anything
from torch.overrides import TorchFunctionMode

import simgpu
from simgpu._native import memory, python_objects
from simgpu.errors import DevicesActiveError, RealCudaError


def test_the_devices_have_cudas_names(cuda):
    assert cuda == [torch.device("cuda", index) for index in range(4)]
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == torch.accelerator.device_count() == 4
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


# Every way to make a tensor on a device that is named.
MAKERS = {
    "empty": lambda device: torch.empty(2, device=device),
    "arange": lambda device: torch.arange(3, device=device),
    "randn": lambda device: imported_before_anything(2, device=device),
    "normal": lambda device: torch.normal(0.0, 1.0, (2,), device=device),
    "drawn": lambda device: torch.rand(2, generator=torch.Generator(device), device=device),
    "tensor": lambda device: torch.tensor([1, 2], device=device),
    "as_tensor": lambda device: torch.as_tensor([1, 2], device=device),
    "as_tensor of a tensor": lambda device: torch.as_tensor(torch.ones(2), device=device),
    "asarray": lambda device: torch.asarray([1, 2], device=device),
    "strided": lambda device: torch.empty_strided((2,), (1,), device=device),
    "like": lambda device: torch.zeros_like(torch.ones(2), device=device),
    "like on a device": lambda device: torch.rand_like(torch.ones(2).cuda(3), device=device),
    "new": lambda device: torch.ones(2).new_zeros(3, device=device),
    "new on a device": lambda device: torch.ones(2).cuda(3).new_full((2,), 1, device=device),
    "new tensor": lambda device: torch.ones(2).cuda(3).new_tensor([1], device=device),
    "to": lambda device: torch.ones(2).to(device),
    "to by name": lambda device: torch.ones(2).to(device=device, non_blocking=True),
    "to with dtype": lambda device: torch.ones(2).to(device, torch.float64),
    "between": lambda device: torch.ones(2).cuda(3).to(device),
    "cuda": lambda device: torch.ones(2).cuda(device),
    "cuda by name": lambda device: torch.ones(2).cuda(device=device, non_blocking=True),
    "module": lambda device: nn.Linear(2, 2, device=device).weight,
    "module to": lambda device: nn.Linear(2, 2).to(device).weight,
    "module cuda": lambda device: nn.Linear(2, 2).cuda(device).weight,
    "operator": lambda device: torch.ops.aten.ones.default([2], device=torch.device(device)),
    "compressed": lambda device: torch.zeros(2, 2, layout=torch.sparse_csr, device=device),
    "saved": lambda device: torch.load(saved(torch.ones(2)), map_location=device),
    "storage": lambda device: torch.UntypedStorage(4, device=device),
}


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("make", MAKERS)
@given(named=st.sampled_from(["cuda:2", "cuda", 2, torch.device("cuda", 1)]))
def test_every_way_to_make_a_tensor(make, named):
    if named == 2 and make in ("operator", "saved", "drawn"):
        named = "cuda:2"  # these take no number
    with simgpu.as_cuda(4), torch.cuda.device(3):
        made = MAKERS[make](named)
        index = {"cuda": 3}.get(named, 1 if isinstance(named, torch.device) else 2)
        assert made.device == torch.device("cuda", index)
        assert made.is_cuda
        if isinstance(made, torch.Tensor):
            assert made.get_device() == index
            assert not made.is_cpu


class Sees(TorchFunctionMode):
    """Sees each function, and each attribute that is read."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


@given(
    named=st.sampled_from(["cpu", "cuda:1"]),
    modes=st.lists(st.sampled_from(["cpu", "cuda", "meta", None]), max_size=2),
    default=st.sampled_from([None, "cpu", "cuda"]),
    subclass=st.booleans(),
)
def test_is_cuda_is_the_same_in_modes_and_subclasses(named, modes, default, subclass):
    """Such as a default device, which is a mode."""
    with simgpu.as_cuda(2), contextlib.ExitStack() as stack:
        x = torch.ones(2).to(named)
        x = x.as_subclass(Subclass) if subclass else x
        stack.callback(torch.set_default_device, None)
        torch.set_default_device(default)
        for mode in modes:
            stack.enter_context(Sees() if mode is None else torch.device(mode))
        assert (x.is_cuda, x.is_cpu, x.device.type) == (
            named != "cpu",
            named == "cpu",
            named.partition(":")[0],
        )


def test_attributes_of_a_tensor_name_cuda(cuda):
    x = torch.ones(2, device="cuda:1")
    assert repr(x) == "tensor([1., 1.], device='cuda:1')"
    assert x.type() == "torch.cuda.FloatTensor"
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert x.type("torch.cuda.DoubleTensor").dtype is torch.float64
    assert x.type(torch.cuda.LongTensor).device == x.device
    assert x.long().type("torch.FloatTensor").device == torch.device("cpu")
    assert x.untyped_storage().device == torch.device("cuda:1")
    assert (torch.cuda.Stream(2).device, torch.cuda.Stream(2).device_index) == (cuda[2], 2)
    assert torch.Generator("cuda:3").device == cuda[3]
    assert re.match("<torch._C.Generator object at 0x", repr(torch.Generator("cuda")))
    assert torch.cuda.Event().device is None
    assert torch.cuda.current_stream(2).record_event().device == cuda[2]
    assert torch.Event("cuda").device == torch.device("cuda")
    assert not hasattr(x, "__cuda_array_interface__")


def test_lazy_modules_move_before_they_have_shapes(cuda):
    for net in (nn.LazyLinear(3).cuda(1), nn.LazyLinear(3).to("cuda:1")):
        assert net(torch.ones(2, 7, device="cuda:1")).device == net.weight.device == cuda[1]


def test_a_tensor_that_is_there_already_stays_itself(cuda):
    x = torch.ones(2, device="cuda:1")
    assert x.to("cuda:1") is x.cuda(1) is x.to(device=cuda[1]) is x.to(1) is x
    assert torch.as_tensor(x, device="cuda:1") is x
    with torch.cuda.device(1):
        assert x.cuda() is x.to("cuda") is x
    assert x.cuda().device == x.to("cuda").device == cuda[0]


# Calls that `tensor.cuda` refuses before it looks for a device: PyTorch raises the same here.
WRONG_CALLS = [
    ("cpu",),
    (torch.device("meta"),),
    ("xpu:1",),
    ("nothing",),
    (-1,),
    (1.5,),
    (0, True, torch.contiguous_format),
]


@pytest.mark.parametrize("arguments", WRONG_CALLS, ids=repr)
def test_cuda_method_refuses_wrong_calls_as_without_devices(arguments):
    with pytest.raises((RuntimeError, TypeError)) as expected:
        torch.ones(2).cuda(*arguments)
    with simgpu.as_cuda(2), pytest.raises(expected.type) as caught:
        torch.ones(2).cuda(*arguments)
    if expected.type is RuntimeError:  # a TypeError lists the signatures of what it came from
        assert str(caught.value) == str(expected.value)


def test_streams_and_events_are_described_as_cuda(cuda):
    stream, event = torch.cuda.Stream(1), torch.cuda.Event()
    handle = f"{stream.cuda_stream:#x}"
    assert repr(stream) == f"<torch.cuda.Stream device=cuda:1 cuda_stream={handle}>"
    assert repr(event) == "<torch.cuda.Event not recorded>"
    assert isinstance(torch.Stream("cuda:1"), torch.cuda.Stream)
    assert isinstance(torch.Event("cuda"), torch.cuda.Event)
    with torch.Stream("cuda:2") as current:
        assert torch.cuda.current_stream() == torch.accelerator.current_stream() == current
        assert torch.cuda.current_device() == 2
    assert torch.cuda.memory_summary(1).startswith("cuda:1 memory")


def test_autocast_is_cudas(cuda):
    x = torch.ones(2, 2, device="cuda")
    assert not torch.is_autocast_enabled()
    with torch.autocast("cuda"):
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert (x @ x).dtype == torch.get_autocast_gpu_dtype() == torch.float16
        assert (x.cpu() @ x.cpu()).dtype is torch.float32
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype is torch.float32
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.get_autocast_dtype("cuda") == torch.bfloat16
    assert not torch.is_autocast_enabled("cuda")
    assert (x @ x).dtype is torch.float32


def test_saved_tensors_name_cuda(cuda):
    x = torch.arange(3.0, device="cuda:2")
    assert b"cuda:2" in saved(x).getvalue()
    assert b"simgpu" not in saved(x).getvalue()
    assert torch.load(saved(x)).device == cuda[2]
    assert torch.load(saved(x), map_location="cpu").device.type == "cpu"
    assert torch.load(saved(x), map_location={"cuda:2": "cuda:1"}).device == cuda[1]
    assert torch.load(saved(x), map_location=lambda storage, _: storage.cuda(3)).device == cuda[3]
    for copied in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert copied.device == cuda[2]
        assert copied.tolist() == [0, 1, 2]


def everything_replaced():
    """The names of `torch` that a block may replace, and their values now."""
    owners = [torch, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.graphs]
    owners += [torch.cuda.nvtx, torch.cuda.nccl, torch.cuda.streams, torch.nn.parallel._functions]
    owners += [torch.Tensor, torch.UntypedStorage, torch.Generator, torch.Stream, torch.Event]
    owners += [torch.accelerator, torch.backends.cuda, torch.autograd.profiler, torch._C]
    owners += [torch._subclasses.fake_tensor.FakeTensor]
    # Loaded when they are first asked for.
    lazy = {"_cupti_monitor", "_gpu_trace", "_memory_viz", "jiterator", "comm", "profiler"}
    return {
        (owner.__name__, name): value
        for owner in owners
        for name, value in list(vars(owner).items())
        if name not in lazy
    }


def test_block_restores_all_names_of_torch_after_an_error():
    with simgpu.devices(1):
        pass  # the simulated devices' own registrations stay, for the whole process
    before = everything_replaced()
    with contextlib.suppress(KeyError), simgpu.as_cuda(2):
        x = torch.ones(2, device="cuda:1")
        assert everything_replaced() != before
        raise KeyError
    assert everything_replaced() == before
    assert not torch.cuda.is_available()
    assert x.device == torch.device("simgpu:1")
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
        torch.ones(2, device="cuda")
    with simgpu.devices(2):
        assert torch.ones(2, device="simgpu:1").device == torch.device("simgpu:1")


def test_blocks_register_nothing_at_exit():
    with simgpu.as_cuda(1):
        pass
    waiting = atexit._ncallbacks()
    with simgpu.as_cuda(1):
        pass
    assert atexit._ncallbacks() == waiting


def test_blocks_do_not_nest(cuda):
    with pytest.raises(DevicesActiveError), simgpu.as_cuda(2):
        raise AssertionError("entered")
    assert torch.ones(1, device="cuda:3").device == cuda[3]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the suite covers GPUs everywhere")
def test_real_cuda_is_replaced_only_by_force(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(RealCudaError, match="2 real CUDA devices"), simgpu.as_cuda(4):
        raise AssertionError("entered")
    with simgpu.as_cuda(4, force=True):
        assert torch.cuda.device_count() == 4
    assert torch.cuda.device_count() == 2


COVERED = """
import warnings
import torch, simgpu
warnings.filterwarnings("ignore", "Warning only once")  # of the line after the next
library = torch.library.Library("aten", "IMPL")
library.impl("empty.memory_format", lambda *args, **kwargs: torch.empty(0), "CUDA")
with simgpu.as_cuda(2):
    print(torch.zeros(3, device="cuda:1").shape, torch.zeros(3, device="cuda:1").device)
torch.cuda._lazy_init = lambda: None
print(torch.empty(3, device="cuda:1").device)
from simgpu._devices import block
from simgpu._devices import block
world = block.devices(2)
world.__enter__()
block.start_process()
print(torch.zeros(3, device="cuda:1").device)
"""


@pytest.mark.full
def test_kernels_of_a_cuda_build_are_hidden_within_blocks(python):
    """A build with CUDA, on a machine without it, has a kernel that would look for a driver."""
    done = python("-c", COVERED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["torch.Size([3]) cuda:1", "cpu", "cuda:1"]


@given(index=st.integers(0, 3), kind=st.sampled_from([int, np.int64, np.int32, np.uint8]))
def test_a_number_names_the_device_of_a_tensor_there(cuda, index, kind):
    device = torch.device(kind(index))
    for other in (torch.ones(2, device=index).device, torch.device("cuda", index), cuda[index]):
        assert device == other
        assert hash(device) == hash(other)
        assert type(device) is type(other) is torch.device
    assert (device.type, device.index, str(device)) == ("cuda", index, f"cuda:{index}")
    assert {device: 1}[cuda[index]] == 1
    assert copy.deepcopy(device) == pickle.loads(pickle.dumps(device)) == device
    with torch.device(index):
        assert torch.empty(1).device == device


MISTAKES = [(), (None,), ("nope",), ("cuda", 99, 1), (-5,), (1.5,)]


@pytest.mark.parametrize("arguments", MISTAKES, ids=str)
def test_mistakes_raise_alike_for_both_names_of_devices(arguments):
    reported = []
    for within in (simgpu.devices, simgpu.as_cuda):
        with within(2), pytest.raises((RuntimeError, TypeError)) as caught:
            torch.device(*arguments)
        reported.append((caught.type, str(caught.value)))
    assert reported[0] == reported[1]


@pytest.mark.parametrize("index", [-1, -9, 4, 2**15])
def test_an_error_about_a_number_names_no_other_type(cuda, index):
    with pytest.raises(RuntimeError, match="invalid device ordinal") as raised:
        torch.accelerator.set_device_index(index)
    assert "simgpu:" not in str(raised.value)


def test_the_type_is_itself_again_afterwards():
    slot = (id(torch.device) >> 3) + python_objects.NEW
    made = torch.device.__new__
    before = memory.words[slot]
    with simgpu.devices(2):
        assert torch.device(1).type == "simgpu"
    with simgpu.as_cuda(2):
        assert memory.words[slot] != before
    assert (memory.words[slot], torch.device.__new__) == (before, made)
