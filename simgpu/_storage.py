"""Storages of simulated devices: made, copied to another size, moved, without a C++ allocator.

PyTorch makes, grows and empties storages by asking C++ for the device's allocator; a device type
that lives in Python has none, and the interpreter would crash. Everything that would ask is
answered here with the memory of a tensor, so every byte passes the same kernels and is entered in
the same ledger as a tensor's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.storage import UntypedStorage

from simgpu import _pinned, _world
from simgpu._kernels import device_kernel
from simgpu._launch import Kernel, launch
from simgpu._layout import swap_memory
from simgpu._relabel import DEVICE_TYPE, host_alias
from simgpu.errors import UnsupportedError

_HOST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_aten = torch.ops.aten
_empty = device_kernel(_aten.empty.memory_format)
_set_storage = _aten.set_.source_Storage_storage_offset._handle.redispatch_boxed
_COPY = Kernel(_aten.copy_.default)

_StorageBase: Any = torch._C.StorageBase
_stock_new: Any = _StorageBase.new
_stock_resize: Any = _StorageBase.resize_
_stock_resizable: Any = _StorageBase.resizable
_stock_to: Any = UntypedStorage.to


def new_storage(nbytes: int, index: int) -> UntypedStorage:
    """`nbytes` fresh bytes on device `index`, with any values."""
    device = _world.device(index).torch_device
    tensor: torch.Tensor = _empty([nbytes], dtype=torch.uint8, device=device)
    return tensor.untyped_storage()


def resize_storage(storage: UntypedStorage, nbytes: int) -> None:
    """Give `storage` room for `nbytes` bytes; it keeps its first ones, and so does every view.

    As on CUDA the old and the new memory are both taken for a moment, and shrinking to nothing
    gives the memory back at once. Raises UnsupportedError where PyTorch's storages are not
    understood (`_layout`).
    """
    old = storage.nbytes()
    if nbytes == old:
        return
    index = storage.device.index
    fresh = new_storage(nbytes, index)
    kept = min(old, nbytes)
    if kept:
        source, target = (host_alias(_bytes_of(s, kept, index)) for s in (storage, fresh))
        launch(_COPY, index, (target, source), {})
    swap_memory(storage, fresh)


def _bytes_of(storage: UntypedStorage, nbytes: int, index: int) -> torch.Tensor:
    """The first `nbytes` bytes of `storage` as a tensor."""
    device = _world.device(index).torch_device
    tensor: torch.Tensor = _empty([0], dtype=torch.uint8, device=device)
    _set_storage(_HOST_KEYS, tensor, storage, 0, (nbytes,), (1,))
    return tensor


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
    index = _world.resolve(device)
    rest = {name: value for name, value in kwargs.items() if name not in ("device", "allocator")}
    # The CPU's constructor checks the other arguments; a size comes back as that many bytes.
    size = args[0] if args else rest.get("size", 0)
    if isinstance(size, int):
        return new_storage(_StorageBase.__new__(cls, 0).nbytes() + _checked(size), index)
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


def _resize(self: UntypedStorage, size: int) -> Any:
    """`storage.resize_(bytes)`."""
    if not _is_simulated(self):
        return _stock_resize(self, size)
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"resize_ expects an int (bytes), got {type(size).__name__}")
    resize_storage(self, _checked(size))
    return self


def _resizable(self: UntypedStorage) -> bool:
    """`storage.resizable()`."""
    return _is_simulated(self) or _stock_resizable(self)


def _to(self: UntypedStorage, *, device: Any, non_blocking: bool = False) -> Any:
    """`storage.to(device=...)`; what comes to the host without blocking comes pinned."""
    target = torch.device(device)
    if _is_simulated(self) and target.type == "cpu":
        host = self.cpu()
        if non_blocking:
            _pinned.mark(host)
        return host
    return _stock_to(self, device=target, non_blocking=non_blocking)


def _byteswap(self: UntypedStorage, element_size: int) -> None:
    """`storage.byteswap(dtype)`, which PyTorch has for the host's memory alone."""
    if _is_simulated(self):
        raise UnsupportedError(
            f"byteswap of a storage on {self.device}: swap the bytes of storage.cpu() instead"
        )
    _StorageBase._byteswap(self, element_size)


def install() -> None:
    """Let storages of simulated devices be made and resized as any others."""
    UntypedStorage.__new__ = staticmethod(_make)  # type: ignore[assignment]
    UntypedStorage.new = _new  # type: ignore[method-assign]
    UntypedStorage.resize_ = _resize  # type: ignore[method-assign]
    UntypedStorage.resizable = _resizable  # type: ignore[method-assign]
    UntypedStorage.to = _to  # type: ignore[method-assign]
    UntypedStorage._byteswap = _byteswap  # type: ignore[method-assign]
