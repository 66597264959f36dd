"""`torch.UntypedStorage` of simulated devices: made, resized, moved, sent to other processes.

PyTorch makes, grows and empties storages by asking C++ for the device's allocator; a device type
that is registered from Python has none, and the process would crash. So each method that would ask
is replaced here by one that takes the memory of a tensor, which passes the same kernels and is
counted in the same ledger as any other tensor's.
"""

from __future__ import annotations

import functools
import multiprocessing.queues
import os
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions
from torch.storage import UntypedStorage

from simgpu._core import world
from simgpu._memory import pinned, sharing
from simgpu._memory.ownership import is_composite
from simgpu._memory.sharing import shared_memory_of, sharing_strategy
from simgpu._memory.storages import (
    copy_to_host,
    mark_exported,
    new_storage,
    resize_storage,
)
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Patches, Table
from simgpu.errors import UnsupportedError

PATCHES = Table()
_WHY_ALLOCATOR = "C++ would ask the device's allocator, which a device type in Python lacks"
_WHY_COPY = "storages come to the CPU by the device's copy, even when the devices are gone"

_StorageBase: Any = torch._C.StorageBase


def _is_simulated(storage: UntypedStorage) -> bool:
    return storage.device.type == DEVICE_TYPE


def _make(cls: type[UntypedStorage], *args: Any, **kwargs: Any) -> UntypedStorage:
    """`torch.UntypedStorage(size or values, device=...)`."""
    wanted = kwargs.get("device")
    device = None if wanted is None else torch.device(wanted)
    if device is None or device.type != DEVICE_TYPE:
        return _StorageBase.__new__(cls, *args, **kwargs)  # type: ignore[no-any-return]
    if cls is not UntypedStorage:
        raise UnsupportedError(
            f"{cls.__name__}(device={str(device)!r}): a storage on a {DEVICE_TYPE} device is "
            "always a torch.UntypedStorage, never an instance of a subclass"
        )
    if kwargs.get("allocator") is not None:
        raise UnsupportedError(
            f"allocator={kwargs['allocator']!r} must be left out for a storage on {device}: "
            f"{DEVICE_TYPE} devices have no allocator in C++"
        )
    index = world.resolve(device)
    rest = {name: value for name, value in kwargs.items() if name not in ("device", "allocator")}
    given = [*args, *rest.values()]
    if len(given) == 1 and type(given[0]) is int:
        return new_storage(_checked(given[0]), index)
    # The host's constructor knows what else there may be, and says what there may not.
    values = _StorageBase.__new__(cls, *args, **rest)
    storage = new_storage(values.nbytes(), index)
    storage.copy_(values)
    return storage


def _checked(size: int) -> int:
    if size < 0:
        raise RuntimeError(f"size={size} must not be negative: a storage has that many bytes")
    return size


@PATCHES.around("torch.UntypedStorage.new", why=_WHY_ALLOCATOR)
def _new(stock: Callable[..., Any], self: UntypedStorage) -> Any:
    """`storage.new()`: an empty storage on the current device, as on CUDA."""
    return new_storage(0, world.current_device()) if _is_simulated(self) else stock(self)


@PATCHES.around(
    "torch.UntypedStorage.__getitem__",
    why="the memory of a slice has to outlive a resize of the storage",
)
def _getitem(stock: Callable[..., Any], self: UntypedStorage, index: Any) -> Any:
    """`storage[i]`, and `storage[i:j]`, which is a storage over the same memory."""
    if isinstance(index, slice) and _is_simulated(self):
        mark_exported(self)
    return stock(self, index)


@PATCHES.around("torch.UntypedStorage.resize_", why=_WHY_ALLOCATOR)
def _resize(stock: Callable[..., Any], self: UntypedStorage, size: int) -> Any:
    if not _is_simulated(self):
        return stock(self, size)
    if isinstance(size, bool) or not isinstance(size, int):
        raise RuntimeError(f"resize_ expects an int (bytes), got {type(size).__name__}")
    resize_storage(self, _checked(size))
    return self


@PATCHES.around("torch.UntypedStorage.resizable", why=_WHY_ALLOCATOR)
@PATCHES.around(
    "torch.UntypedStorage.is_shared",
    why="older releases answer True only for CUDA's storages, not for any device's",
)
def _yes(stock: Callable[..., Any], self: UntypedStorage) -> bool:
    return _is_simulated(self) or stock(self)


@PATCHES.around("torch.UntypedStorage.cpu", why=_WHY_COPY)
def _cpu(stock: Callable[..., Any], self: UntypedStorage) -> UntypedStorage:
    """`storage.cpu()`, which works for memory whose devices are gone, too: it can be saved."""
    return copy_to_host(self) if _is_simulated(self) else stock(self)


@PATCHES.around("torch.UntypedStorage.to", why=_WHY_COPY)
def _to(
    stock: Callable[..., Any], self: UntypedStorage, *, device: Any, non_blocking: bool = False
) -> Any:
    """`storage.to(device=...)`; what comes to the host without blocking comes pinned."""
    target = torch.device(device)
    if _is_simulated(self) and target.type == "cpu":
        host = copy_to_host(self)
        if non_blocking:
            pinned.mark(host)
        return host
    return stock(self, device=target, non_blocking=non_blocking)


@PATCHES.replace(
    "torch.UntypedStorage._byteswap",
    why="PyTorch would swap bytes at a device's address, which the host may not write",
)
def _byteswap(self: UntypedStorage, element_size: int) -> None:
    """`storage.byteswap(dtype)`, which PyTorch has only for the host's memory."""
    if _is_simulated(self):
        raise UnsupportedError(
            f"byteswap of a storage on {self.device}: swap the bytes of storage.cpu() instead"
        )
    _StorageBase._byteswap(self, element_size)


PATCHES.add("torch.UntypedStorage.__new__", value=staticmethod(_make), why=_WHY_ALLOCATOR)


# Tensors in queues, pipes and arguments of processes: sent as CUDA's IPC sends them.
#
# What is sent is shared memory (`simgpu._memory.sharing`) and the index of a device. The receiver
# needs simulated devices of its own; where it has none, receiving raises.

_Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def reduce_tensor(tensor: torch.Tensor) -> _Reduced:
    """What is sent of a tensor on a device: its storage, and what it sees of it."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            "a tensor that a computation with gradients made cannot be sent to another process, "
            "since autograd does not reach there: send tensor.detach()"
        )
    torch.utils.hooks.warn_if_has_hooks(tensor)
    if is_composite(tensor):
        raise UnsupportedError(
            f"a tensor of layout {tensor.layout} on {tensor.device} cannot be sent to another "
            "process: send its parts, such as indices() and values(), and make another there"
        )
    return sharing.rebuild_tensor, (
        isinstance(tensor, torch.nn.Parameter),
        tensor.requires_grad,
        tensor.untyped_storage(),
        tensor.dtype,
        (tensor.storage_offset(), tuple(tensor.shape), tensor.stride()),
        (tensor.is_conj(), tensor.is_neg()),
    )


def reduce_storage(storage: torch.UntypedStorage) -> _Reduced:
    """What is sent of a storage on a device: the same memory as the host's, and the index."""
    if not storage.nbytes():
        return sharing.rebuild_storage, (None, storage.device.index, "")
    shared = shared_memory_of(storage)
    if shared.strategy != sharing_strategy():
        # PyTorch would move the memory from under the storage.
        raise UnsupportedError(
            f"a tensor on {storage.device} that was shared by the strategy {shared.strategy!r} "
            f"cannot be sent by {sharing_strategy()!r}: call "
            "torch.multiprocessing.set_sharing_strategy before any tensor is sent"
        )
    return sharing.rebuild_storage, (shared.host, storage.device.index, shared.strategy)


def _send_or_raise(
    reduce: Callable[[Any], _Reduced], stock: Callable[[Any], Any], value: Any
) -> Any:
    """Reduce a tensor or storage, by PyTorch's own function where it is on no simulated device."""
    if value.device.type != DEVICE_TYPE:
        return stock(value)
    try:
        return reduce(value)
    except Exception as error:
        if not _is_lost_when_raised():
            raise
        text = f"{error} (raised by process {os.getpid()}, which put it into a queue)"
        return sharing.raise_error, (type(error).__name__, text)


def _is_lost_when_raised() -> bool:
    """Whether an error raised here would be printed only, while the receiver waits for ever.

    So it is in the thread that pickles what a multiprocessing.Queue was given, unless the queue's
    owner asks for errors (as concurrent.futures does).
    """
    queue: Any = multiprocessing.queues.Queue
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is queue._feed.__code__:
            return frame.f_locals.get("onerror") in (None, queue._on_queue_feeder_error)
        frame = frame.f_back  # type: ignore[assignment]
    return False


@PATCHES.action(
    "`multiprocessing.reduction.ForkingPickler.register`: the reducers of tensors, parameters "
    "and storages",
    why="memory of a simulated device is sent as shared memory of the host",
)
def _register_reducers(_: Patches) -> None:
    reducers: dict[type, Callable[[Any], Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for stock_name, ours in (("reduce_tensor", reduce_tensor), ("reduce_storage", reduce_storage)):
        stock = getattr(reductions, stock_name)
        for kind, reduce in list(reducers.items()):
            if reduce is stock:
                ForkingPickler.register(kind, functools.partial(_send_or_raise, ours, stock))
