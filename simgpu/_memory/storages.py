"""Storages of simulated devices: make one, grow or shrink it in place, copy it to the CPU.

A storage that changes its size stays the same storage, as on CUDA: every tensor over it stands on
the new memory afterwards.
"""

from __future__ import annotations

import torch

from simgpu._memory.host_aliases import bytes_of, host_empty
from simgpu._memory.ownership import adopt, make_sure_of_room
from simgpu._memory.storage_state import Memory, state_of
from simgpu._native.dlpack_relabel import LABELS, relabel
from simgpu._native.storage_layout import set_size, swap_memory
from simgpu._runtime import executors
from simgpu._runtime.host_operators import fill_
from simgpu._runtime.launch import HOST_KEYS, Kernel, launch, launch_copy

_aten = torch.ops.aten
_EMPTY = Kernel(_aten.empty.memory_format)
_COPY = Kernel(_aten.copy_.default)
_CPU = torch.device("cpu")


def new_storage(nbytes: int, index: int) -> torch.UntypedStorage:
    """`nbytes` fresh bytes on device `index`, with any values."""
    make_sure_of_room(index, (nbytes,), torch.uint8)
    host = launch(_EMPTY, index, ((nbytes,),), {"dtype": torch.uint8, "device": _CPU})
    return adopt(host, index).untyped_storage()


_FREED = 255  # the bytes of memory given back: NaN in every floating dtype


def mark_exported(storage: torch.UntypedStorage) -> None:
    """Note that something points into the memory of `storage`: a slice of it, or a DLPack capsule.

    Its memory then lasts as long as the storage, even where a resize gives that other memory.
    """
    executors.finish()  # what is exported can be read without a launch
    state_of(storage).exported = True


def resize_storage(storage: torch.UntypedStorage, nbytes: int) -> None:
    """Give `storage` room for `nbytes` bytes; it keeps its first ones, and so does every view.

    As on CUDA the old and the new memory are both taken for a moment. A tensor over bytes that
    were given back reads NaN there, where CUDA would fault; so a host kernel never leaves the
    memory it may read. Raises UnsupportedError where PyTorch's storages are not understood
    (`storage_layout`).
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
        fill_(HOST_KEYS, host, _FREED)
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


def copy_on_device(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """A storage of the same device with the same bytes."""
    nbytes, index = storage.nbytes(), storage.device.index
    copy = new_storage(nbytes, index)
    if nbytes:
        launch(_COPY, index, (bytes_of(copy, nbytes, index), bytes_of(storage, nbytes, index)), {})
    return copy


def copy_to_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """The bytes of `storage`, in host memory."""
    nbytes, index = storage.nbytes(), storage.device.index
    host = host_empty(nbytes)
    if nbytes:
        launch_copy(_COPY, index, None, (host, bytes_of(storage, nbytes, index)), {})
    return host.untyped_storage()
