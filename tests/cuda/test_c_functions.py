"""What PyTorch's harness and Python code call past torch.cuda: functions of torch._C, versions."""

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.cuda import comm, nccl

import simgpu


def test_the_current_device(cuda):
    assert torch._C._cuda_getDeviceCount() == 4
    torch._C._cuda_setDevice(2)
    assert torch._C._cuda_exchangeDevice(3) == 2
    assert torch._C._cuda_maybeExchangeDevice(-1) == torch._C._cuda_getDevice() == 3
    assert not torch._C._cuda_hasPrimaryContext(1)
    x = torch.ones(2, device="cuda:1")
    assert torch._C._cuda_hasPrimaryContext(1)
    assert x.device == cuda[1]


def test_the_current_stream(cuda):
    stream = torch.cuda.Stream(2)
    numbers = (stream.stream_id, stream.device_index, stream.device_type)
    torch._C._cuda_setStream(*numbers)
    assert torch._C._cuda_getCurrentStream(2) == numbers
    assert torch._C._cuda_getDefaultStream(2)[0] == torch._C._cuda_getCurrentRawStream(1) == 0
    assert torch._C._cuda_getCurrentRawStream(2) == stream.cuda_stream
    assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (2, stream)
    with pytest.raises(ValueError, match="number of a cuda device type"):
        torch._C._cuda_setStream(stream.stream_id, 2, 0)


def test_recorded_events_have_handles(cuda):
    first, second = torch.cuda.Event(), torch.cuda.Event()
    assert first.cuda_event == first.event_id == 0
    first.record()
    second.record(torch.cuda.Stream(1))
    assert len({first.cuda_event, second.cuda_event, 0}) == 3
    assert (first.device, second.device) == (cuda[0], cuda[1])


def test_versions_agree_with_there_being_devices():
    before = (torch.version.cuda, torch.backends.cuda.is_built(), torch.backends.cudnn.version())
    with simgpu.as_cuda(1):
        assert int(torch.version.cuda.split(".")[0]) >= 12
        assert torch.backends.cuda.is_built()
        assert torch.backends.cudnn.is_available()
        assert torch.backends.cudnn.version() >= 90000
        acceptable = torch.backends.cudnn.is_acceptable
        x = torch.ones(1, device="cuda")
        assert acceptable(x)
        assert not any(map(acceptable, (x.int(), x.bfloat16(), x.cpu())))
        with torch.backends.cudnn.flags(enabled=False):
            assert not acceptable(x)
        assert torch._C._cuda_getCompiledVersion() >= 12000
        # The compiler imports it where PyTorch is built with CUDA.
        assert isinstance(torch._C._cuda_CUDAAllocator_AllocatorState, type)
    after = (torch.version.cuda, torch.backends.cuda.is_built(), torch.backends.cudnn.version())
    assert after == before


def test_the_runtime_library(cuda):
    library = torch.cuda.cudart()
    handle = ctypes.c_uint64()
    with torch.cuda.device(2):
        assert library.cudaStreamCreate(ctypes.addressof(handle)) == library.cudaError.success
    stream = torch.cuda.ExternalStream(handle.value, device=2)
    assert (stream.cuda_stream, stream.device) == (handle.value, cuda[2])
    assert library.cudaStreamDestroy(handle.value) == library.cudaDeviceSynchronize() == 0
    with pytest.raises(ValueError, match="0x0"):
        library.cudaStreamCreate(0)
    with pytest.raises(torch.cuda.CudaError, match="out of memory"):
        torch.cuda.check_error(2)


def test_memory_that_a_program_pins_itself(cuda):
    x, library = torch.ones(20), torch.cuda.cudart()
    assert library.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == 0
    assert x.is_pinned()
    assert x[3:].is_pinned()
    assert not torch.ones(20).is_pinned()
    assert library.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == 712
    assert library.cudaHostUnregister(x.data_ptr()) == 0
    assert not x.is_pinned()
    assert library.cudaHostUnregister(x.data_ptr()) == 713


def test_memory_without_a_tensor(cuda):
    address = torch.cuda.caching_allocator_alloc(1000, 3)
    assert torch.cuda.memory_allocated(torch.cuda.device(3)) == 1024
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated(3) == 0
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.cuda.caching_allocator_delete(address)


def test_pinned_and_raw_memory_end_with_the_devices():
    x, seen = torch.ones(20), []
    with simgpu.as_cuda(1):
        torch.cuda.cudart().cudaHostRegister(x.data_ptr(), x.nbytes, 0)
        address = torch.cuda.caching_allocator_alloc(1000)
        torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
    with simgpu.as_cuda(1):
        assert not x.is_pinned()
        with pytest.raises(RuntimeError, match="invalid device pointer"):
            torch.cuda.caching_allocator_delete(address)
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(2**40, device="cuda")
    assert seen == []


X = (6, 4)
# What PyTorch says of wrong calls (torch/csrc/cuda/comm.cpp).
WRONG_CALLS = {
    "at least one device to scatter to": lambda x: comm.scatter(x, ()),
    "at least one output tensor to scatter to": lambda x: comm.scatter(x, out=[]),
    "devices and chunk_sizes to be of same length": lambda x: comm.scatter(x, [0, 0, 0], (2, 4)),
    "all output tensors to be CUDA tensors, but output tensor at index 1": lambda x: comm.scatter(
        x, out=[torch.empty(2, 4, device="cuda"), torch.empty(4, 4)]
    ),
    "Output tensor at index 0 has incorrect shape": lambda x: comm.scatter(
        x, out=[torch.empty(1, 6, 4, device="cuda")]
    ),
    r"incorrect shape: \[5, 2\]\. Expected same shape except for scatter dim 1 as the source "
    r"tensor: \[6, 4\]": lambda x: comm.scatter(x, dim=1, out=[torch.empty(5, 2, device="cuda")]),
    r"Total size for output tensors along scatter dim 1 does not match the source tensor size at "
    r"dim 1\. Expected 4, but got total size 2": lambda x: comm.scatter(
        x, dim=-1, out=[torch.empty(6, 2, device="cuda")]
    ),
    "at least one tensor to gather from": lambda x: comm.gather(()),
    "all input tensors to be CUDA tensors, but tensor at index 1": lambda x: comm.gather(
        (x.cuda(), x.cpu())
    ),
    r"same number of dimensions, but tensor at index 1 has 1 dimensions, \(expected 2\)": (
        lambda x: comm.gather((x.cuda(), x.cuda()[0]))
    ),
    "only non-negative entries": lambda x: comm.scatter(x, [0, 1], (7, -1)),
    "non-negative device index, but got -2": lambda x: comm.scatter(x, [0, -2]),
    "non-negative device index, but got -3": lambda x: comm.broadcast(x, [0, -3]),
    r"All tensors must be on devices\[0\]: 2": lambda x: comm.broadcast_coalesced([x], [2, 1]),
    "all output tensors to be CUDA tensors, but output tensor at index 0": lambda x: comm.broadcast(
        x, out=[torch.empty(X)]
    ),
}


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
@pytest.mark.parametrize("text", WRONG_CALLS)
def test_wrong_calls_of_comm_are_refused_in_cudas_words(cuda, text, device):
    with pytest.raises(RuntimeError, match=text):
        WRONG_CALLS[text](torch.ones(X, device=device))


@given(count=st.integers(1, 5), priority=st.integers(-1, 0))
def test_a_handle_identifies_one_stream_of_one_device(cuda, count, priority):
    streams = [torch.cuda.Stream(device, priority) for device in cuda for _ in range(count)]
    assert {stream.priority for stream in streams} == {priority}
    handles = [stream.cuda_stream for stream in streams]
    # cudaStreamLegacy is 1, and cudaStreamPerThread 2.
    assert len({*handles, 0, 1, 2}) == len(streams) + 3
    for stream in streams:
        assert torch.cuda.ExternalStream(stream.cuda_stream, stream.device) == stream


@given(slots=st.lists(st.integers(-1, 3), min_size=1, max_size=5), indices=st.booleans())
def test_foreach_groups_have_the_devices_of_their_tensors(cuda, slots, indices):
    """As optimizers and clip_grad_norm_ get them."""
    xs = [torch.ones(2, device="cpu" if slot < 0 else cuda[slot]) for slot in slots]
    groups = torch.utils._foreach_utils._group_tensors_by_device_and_dtype([xs], indices)
    assert {device for device, _ in groups} == {x.device for x in xs}
    for (device, dtype), ((members,), found) in groups.items():
        assert {(x.device, x.dtype) for x in members} == {(device, dtype)}
        places = [place for place, x in enumerate(xs) if x.device == device]
        assert list(found) == (places if indices else [])


# What NCCL is handed, made of 2 x 3 on each of two devices, and whether it takes that.
KINDS = {
    "dense": (lambda x: x, True),
    "transposed": (lambda x: x.t(), False),
    "sparse": (lambda x: x.to_sparse(), False),
    "of the host": (lambda x: x.cpu(), False),
}


def test_a_broadcast_sends_sparse_tensors_beside_dense_ones(cuda):
    tensors = [torch.eye(3), torch.ones(2), torch.diag(torch.arange(4.0))]
    sent = [x.to_sparse() if x.dim() == 2 else x for x in (x.cuda() for x in tensors)]
    rows = comm.broadcast_coalesced(sent, [0, 1, 2])
    assert [[x.device.index for x in row] for row in rows] == [[k] * 3 for k in range(3)]
    for row in rows:
        assert [x.is_sparse for x in row] == [True, False, True]
        assert [x.to_dense().tolist() for x in row] == [x.tolist() for x in tensors]


@pytest.mark.parametrize("fitting", [1, 2, 3])
def test_the_buckets_of_a_broadcast_are_full(cuda, fitting):
    """As many tensors travel in one as the limit allows, in the first bucket and the others."""
    tensors = [torch.full((4,), float(k), device="cuda") for k in range(6)]
    _, copies = comm.broadcast_coalesced(tensors, [0, 1], fitting * tensors[0].nbytes)
    assert [x.tolist() for x in copies] == [x.tolist() for x in tensors]
    assert [x.storage_offset() // 4 for x in copies] == [k % fitting for k in range(6)]


@pytest.mark.parametrize("repeated", [False, True])
def test_joined_channels_last_stays_channels_last(cuda, repeated):
    """Channels that are one, repeated, are in no order."""
    parts = [torch.ones(2, 3, 4, 5, device=cuda[k]) for k in (0, 1)]
    parts = [x.to(memory_format=torch.channels_last) for x in parts]
    if repeated:
        parts = [x[:, :1].expand(2, 3, 4, 5) for x in parts]
    joined = comm.gather(parts)
    assert joined.is_contiguous(memory_format=torch.channels_last) == (not repeated)
    assert joined.is_contiguous() == repeated


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("indices", [(0, 1), (1, 1)])
@pytest.mark.parametrize("order", ["ordered", "ring"])
def test_nccl_takes_dense_tensors_of_devices_of_their_own(cuda, kind, indices, order):
    make, taken = KINDS[kind]
    tensors = [make(torch.ones(2, 3, device=cuda[index])) for index in indices]
    with simgpu.comm.reduction(order):
        assert bool(nccl.is_available(tensors)) == (taken and indices == (0, 1) and order == "ring")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_added_by_nccl(cuda, dtype):
    """No kernel of CUDA adds it: on one device it raises."""
    parts = [torch.tensor([0.5, 16.0, -3.0], device=cuda[k]).to(dtype) for k in (0, 1, 2)]
    total = comm.reduce_add(parts, 1)
    assert (total.dtype, total.device) == (dtype, cuda[1])
    assert total.float().tolist() == [1.5, 48.0, -9.0 if dtype is torch.float8_e4m3fn else -8.0]
    with pytest.raises(NotImplementedError, match="add"):
        comm.reduce_add([part.to(cuda[0]) for part in parts], 0)
