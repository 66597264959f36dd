"""`torch.UntypedStorage` of simulated devices: made, resized and moved without a C++ allocator.

PyTorch makes, grows and empties storages by asking C++ for the device's allocator; a device type
that is registered from Python has none, and the process would crash. So each method that would ask
is replaced here by one that takes the memory of a tensor, which passes the same kernels and is
counted in the same ledger as any other tensor's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.storage import UntypedStorage

from simgpu._memory import pinned
from simgpu._memory.storages import copy_to_host, mark_exported, new_storage, resize_storage
from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Patch, Row
from simgpu._runtime import world
from simgpu.errors import UnsupportedError

_StorageBase: Any = torch._C.StorageBase
_stock_getitem: Any = UntypedStorage.__getitem__
_stock_new: Any = _StorageBase.new
_stock_resize: Any = _StorageBase.resize_
_stock_resizable: Any = _StorageBase.resizable
_stock_is_shared: Any = UntypedStorage.is_shared
_stock_cpu: Any = UntypedStorage.cpu
_stock_to: Any = UntypedStorage.to


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


def _new(self: UntypedStorage) -> Any:
    """`storage.new()`: an empty storage on the same device."""
    if not _is_simulated(self):
        return _stock_new(self)
    return new_storage(0, self.device.index)


def _getitem(self: UntypedStorage, index: Any) -> Any:
    """`storage[i]`, and `storage[i:j]`, which is a storage over the same memory."""
    if isinstance(index, slice) and _is_simulated(self):
        mark_exported(self)
    return _stock_getitem(self, index)


def _resize(self: UntypedStorage, size: int) -> Any:
    """`storage.resize_(bytes)`."""
    if not _is_simulated(self):
        return _stock_resize(self, size)
    if isinstance(size, bool) or not isinstance(size, int):
        raise RuntimeError(f"resize_ expects an int (bytes), got {type(size).__name__}")
    resize_storage(self, _checked(size))
    return self


def _resizable(self: UntypedStorage) -> bool:
    """`storage.resizable()`."""
    return _is_simulated(self) or _stock_resizable(self)


def _is_shared(self: UntypedStorage) -> bool:
    """`storage.is_shared()`: yes, for other processes can have it, as those of CUDA."""
    return _is_simulated(self) or _stock_is_shared(self)


def _cpu(self: UntypedStorage) -> UntypedStorage:
    """`storage.cpu()`, which works for memory whose devices are gone, too: it can be saved."""
    return copy_to_host(self) if _is_simulated(self) else _stock_cpu(self)


def _to(self: UntypedStorage, *, device: Any, non_blocking: bool = False) -> Any:
    """`storage.to(device=...)`; what comes to the host without blocking comes pinned."""
    target = torch.device(device)
    if _is_simulated(self) and target.type == "cpu":
        host = copy_to_host(self)
        if non_blocking:
            pinned.mark(host)
        return host
    return _stock_to(self, device=target, non_blocking=non_blocking)


def _byteswap(self: UntypedStorage, element_size: int) -> None:
    """`storage.byteswap(dtype)`, which PyTorch has for the host's memory alone."""
    if _is_simulated(self):
        raise UnsupportedError(
            f"byteswap of a storage on {self.device}: swap the bytes of storage.cpu() instead"
        )
    _StorageBase._byteswap(self, element_size)


PATCHES: tuple[Row, ...] = (
    *(
        Patch(
            "torch.UntypedStorage",
            name,
            value=value,
            why="C++ would ask the device's allocator, which a device type in Python lacks",
        )
        for name, value in (
            ("__new__", staticmethod(_make)),
            ("new", _new),
            ("resize_", _resize),
            ("resizable", _resizable),
        )
    ),
    Patch(
        "torch.UntypedStorage",
        "__getitem__",
        value=_getitem,
        why="the memory of a slice has to outlive a resize of the storage",
    ),
    *(
        Patch(
            "torch.UntypedStorage",
            name,
            value=value,
            why="storages come to the CPU by the device's copy, even when the devices are gone",
        )
        for name, value in (("cpu", _cpu), ("to", _to))
    ),
    Patch(
        "torch.UntypedStorage",
        "is_shared",
        value=_is_shared,
        why="older releases say so of CUDA's storages alone, not of any device's",
    ),
    Patch(
        "torch.UntypedStorage",
        "_byteswap",
        value=_byteswap,
        why="PyTorch would swap bytes at a device's address, which the host may not write",
    ),
)
