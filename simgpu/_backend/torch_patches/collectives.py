"""Copies and sums over devices (`torch._C._broadcast`, `_scatter`, `_gather`), and gloo by default.

`torch.nn.parallel` and `torch.cuda.comm` accept devices of any type, and then call functions of
`torch._C` that a CPU build lacks. With these in their place, PyTorch's own DataParallel runs on
simulated devices and can be compared with others. Sizes, views, buckets, version counters, memory
formats and errors are those of torch/csrc/cuda/comm.cpp.

The library `dataparallel` has functions for the same purpose. They are written twice on purpose:
tests compare the two, and neither package imports the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.cuda.nccl
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.distributed_c10d import Backend

from simgpu import comm
from simgpu._backend.torch_patches.routing import as_in_cpp, routed
from simgpu._core import world
from simgpu._core.streams import Stream
from simgpu._ops.dtypes import name_of
from simgpu._util import naming
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Patches, Table

Tensor = torch.Tensor
PATCHES = Table()


def _device(index: int | None) -> torch.device:
    if index is not None and index < 0:
        raise RuntimeError(f"Expected non-negative device index, but got {index}")
    return torch.device(DEVICE_TYPE, world.resolve(index))


def broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    """The tensor itself for its own device, and copies for the others."""
    own = tensor.get_device()
    _check_as_nccl([tensor], [own, *(index for index in devices if index != own)])
    return [
        tensor if index == own else tensor.to(_device(index), non_blocking=True, copy=True)
        for index in devices
    ]


def broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> Sequence[Tensor]:
    """Copy the tensor into every tensor of `out`."""
    _check_as_nccl([tensor, *out])
    for index, target in enumerate(out):
        _check_on_device(target, index, "output tensor")
        if target.shape != tensor.shape:
            raise RuntimeError(
                f"Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {index} has shape "
                f"{list(target.shape)}"
            )
        target.copy_(tensor, non_blocking=True)
    return out


def broadcast_coalesced(
    tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[Tensor]]:
    """`broadcast` of many tensors, in flat buckets of one dtype and up to `buffer_size` bytes.

    A bucket with a single tensor is that tensor's memory, which so comes again where its device
    does. The parts of any other bucket are shared by all further entries of the device.
    """
    if any(tensor.get_device() != devices[0] for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {devices[0]}")
    outputs: list[list[Any]] = [list(tensors), *([None] * len(tensors) for _ in devices[1:])]
    for bucket in _buckets(tensors, buffer_size):
        originals = [tensors[position] for position in bucket]
        if originals[0].is_sparse:
            copies = _broadcast_sparse(originals, devices)
        else:
            copies = _broadcast_flat(originals, devices)
        for output, parts in zip(outputs[1:], copies[1:], strict=True):
            for position, part in zip(bucket, parts, strict=True):
                output[position] = part
    return outputs


def _broadcast_flat(tensors: Sequence[Tensor], devices: Sequence[int]) -> list[list[Tensor]]:
    """Parts of one buffer for each device, each with a version counter of its own."""
    flat = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    return [
        [
            part.data
            for part in _unflatten_dense_tensors(copy, tensors)  # type: ignore[no-untyped-call]
        ]
        for copy in broadcast(flat, devices)
    ]


def _broadcast_sparse(tensors: Sequence[Tensor], devices: Sequence[int]) -> list[list[Tensor]]:
    """Sparse tensors for each device, whose indices and values are parts of two buffers."""
    indices = _broadcast_flat([tensor._indices() for tensor in tensors], devices)
    values = _broadcast_flat([tensor._values() for tensor in tensors], devices)
    return [
        [
            torch.sparse_coo_tensor(
                *(index, value, tensor.shape),
                check_invariants=False,
                is_coalesced=tensor.is_coalesced(),
            )
            for index, value, tensor in zip(*parts, tensors, strict=True)
        ]
        for parts in zip(indices, values, strict=True)
    ]


def _buckets(tensors: Sequence[Tensor], limit: int) -> Iterator[list[int]]:
    """Positions of tensors that travel together: one dtype and layout, up to `limit` bytes."""
    filling: dict[tuple[torch.dtype, torch.layout], tuple[list[int], int]] = {}
    for position, tensor in enumerate(tensors):
        kind = (tensor.dtype, tensor.layout)
        nbytes = tensor.numel() * tensor.itemsize
        bucket, size = filling.get(kind, ([], 0))
        if bucket and size + nbytes > limit:
            yield bucket
            bucket, size = [], 0
        filling[kind] = ([*bucket, position], size + nbytes)
    for bucket, _ in filling.values():
        yield bucket


def scatter(
    tensor: Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Sequence[Any] | None,
) -> list[Tensor]:
    """Chunks of the tensor, one per device; a view where the device is the tensor's own."""
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is None:
        chunks = list(tensor.chunk(len(devices), dim))
    else:
        if len(chunk_sizes) != len(devices):
            raise RuntimeError(
                "Expected devices and chunk_sizes to be of same length, but got len(devices) = "
                f"{len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
            )
        if sum(chunk_sizes) != tensor.size(dim):
            raise RuntimeError(
                "given chunk sizes don't sum up to the tensor's size (sum(chunk_sizes) == "
                f"{sum(chunk_sizes)}, but expected {tensor.size(dim)})"
            )
        chunks = list(tensor.split_with_sizes(list(chunk_sizes), dim))
    moved = []
    for position, (chunk, index) in enumerate(zip(chunks, devices, strict=False)):
        stream = streams[position] if streams else None
        if stream is not None and stream.device_index != index:
            raise RuntimeError(
                f"Expected the device associated with the stream at index {position} (was "
                f"{stream.device_index}) to match the device supplied at that index (expected "
                f"{index})"
            )
        with contextlib.nullcontext() if stream is None else stream:
            here = index == chunk.get_device()
            moved.append(chunk if here else chunk.to(_device(index), non_blocking=True))
    return moved


def scatter_out(
    tensor: Tensor, out: Sequence[Tensor], dim: int, streams: Sequence[Any] | None
) -> Sequence[Tensor]:
    """Write chunks of the tensor into `out`, whose sizes along `dim` say which."""
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    for index, target in enumerate(out):
        _check_on_device(target, index, "output tensor")
    dim = _wrapped(dim, tensor.dim())
    shape = list(tensor.shape)
    for index, target in enumerate(out):
        fits = target.dim() == len(shape)
        if not fits or any(target.size(d) != shape[d] for d in range(len(shape)) if d != dim):
            raise RuntimeError(
                f"Output tensor at index {index} has incorrect shape: {list(target.shape)}. "
                f"Expected same shape except for scatter dim {dim} as the source tensor: {shape}"
            )
    sizes = [target.size(dim) for target in out]
    if sum(sizes) != shape[dim]:
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source "
            f"tensor size at dim {dim}. Expected {shape[dim]}, but got total size {sum(sizes)}"
        )
    for target, chunk in zip(out, tensor.split_with_sizes(sizes, dim), strict=True):
        target.copy_(chunk, non_blocking=True)
    return out


def gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    """The tensors concatenated along `dim` on the destination, -1 being the CPU."""
    shape = _gathered_shape(tensors, dim)
    formats = {_memory_format(tensor) for tensor in tensors}
    result = torch.empty(
        shape,
        dtype=tensors[0].dtype,
        device="cpu" if destination == -1 else _device(destination),
        memory_format=formats.pop() if len(formats) == 1 else torch.contiguous_format,
    )
    return gather_out(tensors, result, dim)


def gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    """Write the tensors one after the other along `dim` into `out`."""
    shape = _gathered_shape(tensors, dim)
    if list(out.shape) != shape:
        raise RuntimeError(f"Expected out tensor to have shape {shape}, but got {list(out.shape)}")
    parts = out.split_with_sizes([tensor.size(dim) for tensor in tensors], dim)
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor, non_blocking=True)
    return out


def _gathered_shape(tensors: Sequence[Tensor], dim: int) -> list[int]:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    first = tensors[0]
    for index, tensor in enumerate(tensors):
        _check_on_device(tensor, index, "input tensor")
        if tensor.dim() != first.dim():
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at "
                f"index {index} has {tensor.dim()} dimensions, (expected {first.dim()})"
            )
    shape = list(first.shape)
    for index, tensor in enumerate(tensors):
        shape[dim] = tensor.size(dim)
        if list(tensor.shape) != shape:
            raise RuntimeError(
                f"Input tensor at index {index} has invalid shape {list(tensor.shape)}, but "
                f"expected {shape}"
            )
    shape[dim] = sum(tensor.size(dim) for tensor in tensors)
    return shape


def _memory_format(tensor: Tensor) -> torch.memory_format:
    """Channels-last if the strides say so (c10/core/MemoryFormat.h, is_channels_last_strides)."""
    if tensor.dim() not in (4, 5) or tensor.stride(1) == 0 or not tensor.numel():
        return torch.contiguous_format
    least = 0
    for dim in (1, *range(tensor.dim() - 1, 1, -1), 0):
        step = tensor.stride(dim)
        if step < least or (dim == 0 and least == tensor.stride(1)):
            return torch.contiguous_format
        least = step * max(tensor.size(dim), 1)
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d


def _check_on_device(tensor: Tensor, index: int, role: str) -> None:
    if tensor.device.type != DEVICE_TYPE:
        kind = "CUDA" if "cuda" in naming.names else DEVICE_TYPE
        raise RuntimeError(
            f"Expected all {role}s to be {kind} tensors, but {role.removeprefix('input ')} at "
            f"index {index} has device '{tensor.device}'"
        )


def _wrapped(dim: int, rank: int) -> int:
    """`dim` counted from the front; a wrong one as it is, for the operator that refuses it."""
    return dim + rank if -rank <= dim < 0 else dim


def _is_for_nccl(tensors: Sequence[Tensor], devices: Sequence[int]) -> bool:
    """Whether PyTorch has NCCL move these tensors among these devices."""
    return len(set(devices)) == len(devices) and all(
        tensor.device.type == DEVICE_TYPE
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        for tensor in tensors
    )


def _check_as_nccl(tensors: Sequence[Tensor], devices: Sequence[int] | None = None) -> None:
    """Raise where NCCL would be asked to move these among devices, and would refuse."""
    if devices is None:
        devices = [tensor.get_device() for tensor in tensors]
    dtypes = {tensor.dtype for tensor in tensors}
    if (len(dtypes) == 1 and dtypes <= comm.NCCL_DTYPES) or not _is_for_nccl(tensors, devices):
        return
    if len(dtypes) > 1:
        raise RuntimeError("all inputs and outputs must be of the same Tensor dtype")
    raise RuntimeError(f"Unconvertible NCCL type {name_of(dtypes.pop())}")


def nccl_is_available(tensors: Sequence[Tensor]) -> bool:
    """Whether a model of NCCL is in force and would take these tensors, or any would refuse them.

    Float8, which peer copies cannot add, is always NCCL's.
    """
    if not _is_for_nccl(tensors, [tensor.get_device() for tensor in tensors]):
        return False
    dtypes = {tensor.dtype for tensor in tensors}
    return not (comm.is_ordered() and len(dtypes) == 1 and dtypes <= _ADDED_BY_COPIES)


_ADDED_BY_COPIES = comm.NCCL_DTYPES - {*comm.FLOAT8}


def nccl_all_reduce(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], *_: Any, **__: Any
) -> None:
    """Write the sum of `inputs` into each of `outputs`, in the order of the model in force."""
    _check_as_nccl(inputs)
    total = comm.reduce_add(inputs)
    for output in outputs:
        output.copy_(total)


def nccl_reduce(
    inputs: Sequence[Tensor], output: Tensor, root: int = 0, *_: Any, **__: Any
) -> None:
    """Write the sum of `inputs` into `output`, in the order of the model in force."""
    _check_as_nccl(inputs)
    output.copy_(comm.reduce_add(inputs, root))


def nccl_broadcast(inputs: Sequence[Tensor], root: int = 0, *_: Any, **__: Any) -> None:
    """Copy `inputs[root]` into the others."""
    _check_as_nccl(inputs)
    for index, tensor in enumerate(inputs):
        if index != root:
            tensor.copy_(inputs[root])


def _simulated(argument: Any, *_: Any, **__: Any) -> bool:
    """Whether a call is about simulated devices, by its first argument: tensors or lists of them.

    What is on the CPU is sent to simulated devices, if there are any.
    """
    if isinstance(argument, Tensor):
        return argument.device.type == DEVICE_TYPE or (argument.is_cpu and world.is_simulated())
    if not len(argument):
        return world.is_simulated()
    return any(_simulated(item) for item in argument)


@PATCHES.around(
    "torch.nn.parallel._functions._get_stream",
    why="scatter copies from the CPU on a stream of its own per device, as on CUDA",
)
def _background_stream(stock: Callable[..., Any], device: torch.device) -> Any:
    """The stream on which torch.nn.parallel copies from the CPU; one for each device."""
    if not world.is_simulated():
        return stock(device)
    if device.type != DEVICE_TYPE:
        return None
    owner = world.device(device.index)
    if owner.background_stream is None:
        owner.background_stream = Stream(device)
    return owner.background_stream


for _ours in (
    broadcast,
    broadcast_coalesced,
    broadcast_out,
    gather,
    gather_out,
    nccl_all_reduce,
    nccl_broadcast,
    nccl_reduce,
    scatter,
    scatter_out,
):
    PATCHES.add(
        f"torch._C._{_ours.__name__}",
        wrap=routed(as_in_cpp(_ours), as_in_cpp(_simulated)),
        why="torch.nn.parallel and torch.cuda.comm call these, which a CPU build lacks",
    )
PATCHES.add(
    "torch.cuda.nccl.is_available",
    wrap=routed(nccl_is_available, _simulated),
    why="reduce_add takes NCCL's order of summation where a model of NCCL is in force",
)


# Which backend of torch.distributed simulated devices have by default: gloo.


class _LoggerWithoutTimes:
    """The Logger of a DistributedDataParallel, which knows no times of steps."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger, name)

    def set_runtime_stats_and_log(self) -> None:
        """Nothing: C++ has timers for the CPU and for CUDA, and warns of other devices."""


@PATCHES.around(
    "torch.nn.parallel.DistributedDataParallel._ddp_init_helper",
    why="C++ has no timers for simulated devices, and would warn of that",
)
def _without_times(stock: Callable[..., None], self: Any, parameters: Any, *args: Any) -> None:
    stock(self, parameters, *args)
    if any(parameter.device.type in naming.names for parameter in parameters):
        self.logger = _LoggerWithoutTimes(self.logger)


@PATCHES.action(
    "torch.distributed's tables of backends by device",
    why="`init_process_group` with gloo, or without a name, takes simulated devices too",
)
def _enter(patches: Patches) -> None:
    Backend.default_device_backend_map.setdefault(DEVICE_TYPE, Backend.GLOO)
    for name in (Backend.GLOO, "fake"):
        devices = Backend.backend_capability.get(name)
        if devices is not None and DEVICE_TYPE not in devices:
            Backend.backend_capability[name] = [*devices, DEVICE_TYPE]
