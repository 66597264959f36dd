"""Device memory that other processes use too, as memory sent by CUDA's IPC.

A storage that is sent first moves to shared memory: its bytes are copied into a host storage that
PyTorch can send, and the two exchange memory (`layouts`), so that every tensor over the
storage uses shared memory from then on. The process that receives that host storage gives it
the label of its own device with the same index.

The ledger is CUDA's: the sender's entry lasts as long as its storage, and the receiver counts
nothing. The memory from before is kept as long as the storage is, for two reasons: the entry hangs
on it, and a kernel in another thread may still be at work on it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import StorageWeakRef

from simgpu import errors
from simgpu._core import hooks, world
from simgpu._core.launch import HOST_KEYS
from simgpu._core.operators import copy_, set_storage
from simgpu._memory.ownership import bytes_of, host_empty, with_bits
from simgpu._memory.storages import (
    Memory,
    SharedMemory,
    StorageState,
    known_state,
    new_storage,
    state_of,
)
from simgpu._native.layouts import swap_memory
from simgpu._native.relabel import LABELS, relabel
from simgpu.errors import UnsupportedError

# What a process calls to have a tensor that another process sent: the names in what is pickled.


def rebuild_tensor(
    is_parameter: bool,
    requires_grad: bool,
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    place: tuple[int, Sequence[int], Sequence[int]],
    bits: tuple[bool, bool],
) -> torch.Tensor:
    """A tensor over a storage that was received: `place` is its storage offset, sizes and strides.

    `bits` say whether it is conjugated and negated lazily.
    """
    tensor: Any = relabel(host_empty(0, dtype), LABELS[storage.device.index])
    set_storage(HOST_KEYS, tensor, storage, *place)
    tensor = with_bits(tensor, *bits)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)  # type: ignore[no-any-return]


def rebuild_storage(
    host: torch.UntypedStorage | None, index: int, strategy: str
) -> torch.UntypedStorage:
    """A storage of device `index` over shared memory; an empty one where there is none."""
    return new_storage(0, index) if host is None else on_shared_memory(host, index, strategy)


def raise_error(name: str, text: str) -> NoReturn:
    """Raise what kept the other process from sending: an error of `simgpu.errors`, or else torch's.

    Errors are sent by name: the first thing that a new process does may be to receive one.
    """
    kind: type[Exception] = getattr(errors, name, RuntimeError)
    raise kind(text)


_lock = threading.Lock()


def shared_memory_of(storage: torch.UntypedStorage) -> SharedMemory:
    """The shared memory that `storage`, of a device and not empty, uses; moved there if not.

    Raises UnsupportedError where memory of the storage cannot move, and what any use of a device
    raises that this process cannot have (NoDevicesError, ForkedError).
    """
    world.device(storage.device.index)
    with _lock:
        state = state_of(storage)
        return state.memory.shared or _move_to_shared_memory(storage, state)


def _move_to_shared_memory(storage: torch.UntypedStorage, state: StorageState) -> SharedMemory:
    nbytes, index = storage.nbytes(), storage.device.index
    if state.exported or state.memory.extent > nbytes:
        what = "was exported (DLPack, or a slice of the storage)" if state.exported else "shrank"
        raise UnsupportedError(
            f"a tensor on {storage.device} whose memory {what} cannot be sent to another process: "
            "send tensor.clone()"
        )
    host = torch.UntypedStorage._new_shared(nbytes)  # type: ignore[no-untyped-call]
    fresh = _over(host, index)
    hooks.finish_queued_work()
    # Not by `launch`: CUDA sends an address, and no kernel runs.
    copy_(HOST_KEYS, bytes_of(fresh, nbytes, index), bytes_of(storage, nbytes, index))
    shared = SharedMemory(host, sharing_strategy(), fresh)  # `fresh` gets the memory from before
    _remember_device_storage(host, storage)
    swap_memory(storage, fresh, state, state.memory._replace(shared=shared))
    return shared


def on_shared_memory(host: torch.UntypedStorage, index: int, strategy: str) -> torch.UntypedStorage:
    """The storage of device `index` over shared memory that was received.

    The same one for as long as it lives, however often the memory is received.
    """
    world.device(index)
    with _lock:
        known: StorageWeakRef | None = getattr(host, _DEVICE_STORAGE, None)
        if known is not None:
            storage = torch.UntypedStorage._new_with_weak_ptr(known.cdata)
            state = None if storage is None else known_state(storage)
            shared = None if state is None else state.memory.shared
            if shared is not None and shared.host is host:
                return storage
        storage = _over(host, index)
        state_of(storage).memory = Memory(shared=SharedMemory(host, strategy, None))
        _remember_device_storage(host, storage)
        return storage


def sharing_strategy() -> str:
    """How PyTorch shares memory between processes now."""
    return get_sharing_strategy()  # type: ignore[no-any-return, no-untyped-call]


_DEVICE_STORAGE = "_simgpu_device_storage"


def _remember_device_storage(host: torch.UntypedStorage, storage: torch.UntypedStorage) -> None:
    setattr(host, _DEVICE_STORAGE, StorageWeakRef(storage))  # type: ignore[no-untyped-call]


def _over(host: torch.UntypedStorage, index: int) -> torch.UntypedStorage:
    """A storage of device `index` over the memory of `host`, which no ledger counts."""
    tensor = host_empty(0)
    set_storage(HOST_KEYS, tensor, host, 0, (host.nbytes(),), (1,))
    return relabel(tensor, LABELS[index]).untyped_storage()
