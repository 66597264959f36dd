"""Kernels of `resize_`, `set_`, `record_stream` and `_lazy_clone`; and how a storage grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import deterministic

from simgpu._memory.extents import bytes_needed
from simgpu._memory.host_aliases import bytes_of, host_empty
from simgpu._memory.storages import copy_on_device, new_storage, resize_storage
from simgpu._memory.stream_uses import note_use
from simgpu._native.dlpack_relabel import LABELS, relabel
from simgpu._runtime.host_operators import empty, set_storage
from simgpu._runtime.instruments import hooks
from simgpu._runtime.launch import HOST_KEYS, Kernel, launch

_resize = torch.ops.aten.resize_.default._handle.redispatch_boxed
_FILL = Kernel(torch.ops.aten.fill_.Tensor)
_CPU = torch.device("cpu")


def resize_(
    self: torch.Tensor, size: list[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """`Tensor.resize_`: keeps the elements, in the order of the memory.

    Where the storage is too small it grows, for every tensor over it.
    """
    options: dict[str, Any] = {} if memory_format is None else {"memory_format": memory_format}
    wanted = empty(HOST_KEYS, size, dtype=self.dtype, device=torch.device("meta"), **options)
    needed = wanted.untyped_storage().nbytes() + int(self.storage_offset()) * self.itemsize
    had = self.untyped_storage().nbytes()
    if needed > had:
        grow(self, needed)
        if torch.are_deterministic_algorithms_enabled():
            _fill_behind(self, had)
    return _resize(HOST_KEYS, self, size, **options)  # type: ignore[no-any-return]


def _fill_behind(tensor: torch.Tensor, nbytes: int) -> None:
    """Give the storage of `tensor` the values of uninitialized memory from `nbytes` on.

    PyTorch has a value for each dtype (torch.utils.deterministic.fill_uninitialized_memory), and
    fills new memory of the host with it; memory of a device has no dtype when it is made. On CUDA
    this is a kernel, too (ATen/native/cuda/Resize.cpp).
    """
    settings: Any = deterministic  # a module whose attributes are made when they are asked for
    if not settings.fill_uninitialized_memory:
        return
    storage, first = tensor.untyped_storage(), nbytes // tensor.itemsize
    count, index = storage.nbytes() // tensor.itemsize - first, tensor.get_device()
    if not count:
        return
    value = empty(HOST_KEYS, (), dtype=tensor.dtype, device=_CPU)
    whole = bytes_of(storage, storage.nbytes(), index)
    behind = host_empty(0, tensor.dtype)
    set_storage(HOST_KEYS, behind, whole.untyped_storage(), first, (count,), (1,))
    launch(_FILL, index, (behind, value), {})


def grow(tensor: torch.Tensor, nbytes: int) -> None:
    """Give the storage of `tensor`, and so all tensors over it, room for `nbytes` bytes."""
    resize_storage(tensor.untyped_storage(), nbytes)


def set_to_storage(
    self: torch.Tensor,
    source: torch.UntypedStorage,
    storage_offset: int,
    size: Sequence[int],
    stride: Sequence[int] = (),
) -> torch.Tensor:
    """`self.set_(storage, offset, size, stride)`, which grows a storage that is too small."""
    if min((storage_offset, *size, *stride)) < 0 or (stride and len(stride) != len(size)):
        # PyTorch says so when it has changed half of the tensor, which is then unsafe to use.
        raise RuntimeError(
            f"storage_offset={storage_offset}, size={list(size)} and stride={list(stride)} must "
            "not be negative, with as many strides as sizes"
        )
    needed = bytes_needed(size, stride, storage_offset, self.itemsize)
    if source.device == self.device and needed > source.nbytes():
        resize_storage(source, needed)
    return set_storage(HOST_KEYS, self, source, storage_offset, size, stride)


def set_to_nothing(self: torch.Tensor) -> torch.Tensor:
    """`self.set_()`: no elements, on the same device, over a storage of its own."""
    return set_to_storage(self, new_storage(0, self.get_device()), 0, (0,), (1,))


def lazy_clone(self: torch.Tensor) -> torch.Tensor:
    """`torch._lazy_clone(self)`: the same view of a copy of the whole storage, made at once.

    PyTorch copies when one of the two is written to, which needs memory that C++ has allocated.
    """
    clone = relabel(host_empty(0, self.dtype), LABELS[self.get_device()])
    storage = copy_on_device(self.untyped_storage())
    return set_to_storage(clone, storage, int(self.storage_offset()), self.shape, self.stride())


def record_stream(self: torch.Tensor, s: torch.Stream) -> None:
    """`Tensor.record_stream`: the memory is free, once it is dropped, when the stream is done."""
    note_use(self, s)
    for used in hooks.tensor_used_on_stream:
        used(self, s)
