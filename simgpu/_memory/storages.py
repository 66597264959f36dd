"""Storages of simulated devices: make one, grow or shrink it in place, copy it to the CPU.

A storage that changes its size stays the same storage, as on CUDA: every tensor over it uses
the new memory afterwards.
"""

from __future__ import annotations

import _thread
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils import deterministic

from simgpu._core import hooks as core_hooks
from simgpu._core import streams, world
from simgpu._core.by_address import ByAddress
from simgpu._core.device import Allocation
from simgpu._core.hooks import Instrument, add, hooks, remove
from simgpu._core.launch import HOST_KEYS, Kernel, launch, launch_copy
from simgpu._core.operators import empty, set_storage
from simgpu._core.unwritten import fill_unwritten
from simgpu._memory.ownership import adopt, bytes_of, check_memory, host_empty, owned_tensors
from simgpu._native.layouts import set_size, swap_memory
from simgpu._native.relabel import LABELS, relabel

# How many bytes of its storage a tensor reaches, and the kernel of as_strided_, which checks it.
#
# PyTorch forgets to look at this in `as_strided_`: a tensor whose last element is 2^63 bytes away
# or more passes its check of the storage, since the number wraps around. On the CPU such a tensor
# ends the process when it is read; here it would when it crosses a device label.

_MOST_BYTES = 2**63 - 1
_as_strided = torch.ops.aten.as_strided_.default._handle.redispatch_boxed


def bytes_needed(
    size: Sequence[int], stride: Sequence[int], storage_offset: int, itemsize: int
) -> int:
    """How many bytes a storage must have for a tensor; no stride means a contiguous one.

    Raises RuntimeError in PyTorch's words (aten/src/ATen/EmptyTensor.cpp, computeStorageNbytes)
    where no storage can have as many.
    """
    if not all(size):
        return 0
    if stride:
        last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    else:
        last = math.prod(size) - 1
    needed = (storage_offset + last + 1) * itemsize
    if needed > _MOST_BYTES:
        strides = f" and strides={list(stride)}" if stride else ""
        offset = f" from storage_offset={storage_offset}" if storage_offset else ""
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={list(size)}{strides}{offset}"
        )
    return needed


def as_strided_(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """`Tensor.as_strided_`; all but the overflow is checked by PyTorch."""
    if len(size) == len(stride) and min((0, *size, *stride)) == 0:
        offset = int(self.storage_offset()) if storage_offset is None else storage_offset
        bytes_needed(size, stride, offset, self.itemsize)
    return _as_strided(HOST_KEYS, self, size, stride, storage_offset)  # type: ignore[no-any-return]


# What simgpu remembers about one storage: one object under one attribute of the storage.
#
# PyTorch keeps a storage's Python object, and with it this attribute, for as long as the memory
# lives. Most storages have no such object; it is made for the first thing that has to be
# remembered. (What a tensor's memory takes of its device is remembered elsewhere: see `ownership`.)

_ATTRIBUTE = "_simgpu_state"


@dataclass(frozen=True)
class SharedMemory:
    """Memory under a storage that other processes can have too (`sharing`)."""

    host: torch.UntypedStorage
    """The same memory, of the host: PyTorch can send it."""

    strategy: str
    """PyTorch's sharing strategy by which it is shared."""

    before: torch.UntypedStorage | None
    """The storage's memory from before, which is in the ledger; None where it was received."""


class Memory(NamedTuple):
    """Facts about the memory that a storage has now; replaced together with that memory."""

    extent: int = 0
    """Of a storage that has shrunk: the most bytes it ever had."""

    counted: torch.UntypedStorage | None = None
    """Of a storage that has shrunk: the storage that the device counts in its place."""

    outlived: tuple[torch.UntypedStorage, ...] = ()
    """Memory that resizes replaced while something else pointed into it (`exported`)."""

    shared: SharedMemory | None = None
    """Of a storage that was sent to another process, or received."""


class StorageState:
    """What is known of a storage beyond what PyTorch knows."""

    __slots__ = ("exported", "memory", "pinned")

    def __init__(self) -> None:
        # The mark of host memory that counts as pinned (`simgpu._memory.pinned`).
        self.pinned: object = None
        # Whether something points into the memory without using the storage: a slice of the
        # storage, or a DLPack capsule.
        self.exported = False
        self.memory = Memory()


def known_state(storage: torch.UntypedStorage) -> StorageState | None:
    """What is remembered about `storage`, or None where that is nothing."""
    return getattr(storage, _ATTRIBUTE, None)


def state_of(storage: Any) -> StorageState:
    """What is remembered about `storage`, to be changed."""
    state = known_state(storage)
    if state is None:
        state = storage._simgpu_state = StorageState()
    return state


_aten = torch.ops.aten
_EMPTY = Kernel(_aten.empty.memory_format)
_COPY = Kernel(_aten.copy_.default)
_CPU = torch.device("cpu")


def new_storage(nbytes: int, index: int) -> torch.UntypedStorage:
    """`nbytes` fresh bytes on device `index`, with any values."""
    check_memory(index, (nbytes,), torch.uint8)
    host = launch(_EMPTY, index, ((nbytes,),), {"dtype": torch.uint8, "device": _CPU})
    return adopt(host, index).untyped_storage()


def mark_exported(storage: torch.UntypedStorage) -> None:
    """Note that something points into the memory of `storage`: a slice of it, or a DLPack capsule.

    Its memory then lasts as long as the storage, even where a resize gives that other memory.
    """
    core_hooks.finish_queued_work()  # what is exported can be read without a launch
    state_of(storage).exported = True


def resize_storage(storage: torch.UntypedStorage, nbytes: int) -> None:
    """Give `storage` room for `nbytes` bytes; it keeps its first ones, and so does every view.

    As on CUDA the old and the new memory are both taken for a moment. A tensor over bytes that
    were given back reads NaN there, where CUDA would fault; so a host kernel never leaves the
    memory it may read. Raises UnsupportedError where PyTorch's storages are not understood
    (`layouts`).
    """
    old, index = storage.nbytes(), storage.device.index
    if nbytes == old:
        return
    state = state_of(storage)
    kept = min(old, nbytes)
    extent = max(old, nbytes, state.memory.extent)
    counted = new_storage(nbytes, index)
    fresh = counted
    if nbytes < extent:
        host = host_empty(extent)
        fill_unwritten(host)
        fresh = relabel(host, LABELS[index]).untyped_storage()
    if kept:
        launch(_COPY, index, (bytes_of(fresh, kept, index), bytes_of(storage, kept, index)), {})
    # The memory from before is in `fresh` after the swap, and ends with this call. Other processes
    # keep what they received.
    outlived = (*state.memory.outlived, fresh) if state.exported else ()
    memory = Memory(outlived=outlived)
    if nbytes < extent:
        set_size(fresh, nbytes)
        memory = Memory(extent, counted, outlived)
    swap_memory(storage, fresh, state, memory)


def copy_to_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """The bytes of `storage`, in host memory."""
    nbytes, index = storage.nbytes(), storage.device.index
    host = host_empty(nbytes)
    if nbytes:
        launch_copy(_COPY, index, None, (host, bytes_of(storage, nbytes, index)), {})
    return host.untyped_storage()


# `Tensor.record_stream`: which allocation a tensor uses, for the model of the allocator.
#
# A tensor of a device does not know its allocation. A table of them would cost each allocation of
# each program, so it is made at the first call of `record_stream` and kept up from then on, by an
# instrument, until the devices end.


class _Owned:
    """Memory of one allocation."""

    __slots__ = ("allocation", "begin", "end")

    def __init__(self, storage: torch.UntypedStorage, allocation: Allocation) -> None:
        self.begin = storage.data_ptr()
        self.end = self.begin + storage.nbytes()
        self.allocation = weakref.ref(allocation)


class _Uses(Instrument):
    """The allocations that live, by address; an address may be that of one that has died."""

    def __init__(self) -> None:
        # Replicas allocate in threads; a finalizer may allocate within a call. A lock of C, since
        # `simgpu.schedule` must not switch threads here.
        self._lock: Any = _thread.RLock()
        self._owned: ByAddress[_Owned] = ByAddress()
        self._count, self._sweep_at = 0, 1024
        add(self)  # first, so that no allocation is missed
        for _, tensor, allocation in owned_tensors():
            self._put(tensor.untyped_storage(), allocation)

    def _put(self, storage: torch.UntypedStorage, allocation: Allocation) -> None:
        owned = _Owned(storage, allocation)
        with self._lock:
            for dead in self._owned.overlapping(owned.begin, owned.end):
                self._owned.remove(dead)
            self._owned.put(owned)

    def allocated(self, device: torch.device, block: Any, storage: Any, allocation: object) -> None:
        """There is a new allocation."""
        if not block.nbytes or storage is None:
            return
        with self._lock:
            self._count += 1
            if self._count > self._sweep_at:
                live = [owned for owned in self._owned if owned.allocation() is not None]
                self._owned.clear()
                for owned in live:
                    self._owned.put(owned)
                self._count, self._sweep_at = len(live), 2 * len(live) + 1024
        assert isinstance(allocation, Allocation), "so `Device.allocate` says"
        self._put(storage, allocation)

    def note(self, address: int, stream: torch.Stream) -> None:
        """The memory at an address is used by a stream."""
        with self._lock:
            owned = self._owned.at(address)
        allocation = None if owned is None else owned.allocation()
        if allocation is None:
            return
        token = allocation.token
        for device in world.active_devices:
            if device.owns(allocation):
                index, number = streams.key_of(stream)
                own = index == device.index  # among its own, numbers do; handles are larger
                user = number if own else streams.handle_of(index, number)
                device.log.note((token, user))

    def devices_changed(self, devices: Sequence[torch.device]) -> None:
        global _uses
        if not devices:
            remove(self)
            _uses = None


_uses: _Uses | None = None


def note_use(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """Make the memory of a tensor be free, when it is dropped, once `stream` is done."""
    global _uses
    if _uses is None:
        _uses = _Uses()
    _uses.note(tensor.data_ptr(), stream)


# Kernels of `resize_`, `set_`, `record_stream` and `_lazy_clone`; and how a storage grows.

_resize = torch.ops.aten.resize_.default._handle.redispatch_boxed
_FILL = Kernel(torch.ops.aten.fill_.Tensor)


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
    index, source = self.get_device(), self.untyped_storage()
    nbytes = source.nbytes()
    storage = new_storage(nbytes, index)
    if nbytes:
        hosts = (bytes_of(storage, nbytes, index), bytes_of(source, nbytes, index))
        launch(_COPY, index, hosts, {})
    clone = relabel(host_empty(0, self.dtype), LABELS[index])
    return set_to_storage(clone, storage, int(self.storage_offset()), self.shape, self.stride())


def record_stream(self: torch.Tensor, s: torch.Stream) -> None:
    """`Tensor.record_stream`: the memory is free, once it is dropped, when the stream is done."""
    note_use(self, s)
    for used in hooks.used_on_stream:
        used(self.data_ptr(), s)
