"""Pinned host memory: memory with a mark, since no simulated device needs pages to stay put.

`torch.empty(..., pin_memory=True)` and its kin ask the backend's hooks in C++ for an allocator of
pinned memory. They are given the host's own under another address: a storage keeps the address of
its allocator, so its memory can be told from any other.

What is copied into pinned memory (`Tensor.pin_memory`, and with it `DataLoader(pin_memory=True)`,
or a copy to the host that does not block) is ordinary memory of the host, and a mark on its
storage. Every view of either is pinned, and nothing else is.
"""

from __future__ import annotations

import ctypes
from itertools import repeat
from typing import Any

import torch

from simgpu import _virtual, _world
from simgpu._launch import HOST_KEYS
from simgpu._relabel import _words

# Under a key that has no kernel of its own stands the one that PyTorch has for any backend.
_STOCK_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.XLA)
_aten = torch.ops.aten
_empty = _aten.empty.memory_format._handle.redispatch_boxed
_empty_strided = _aten.empty_strided.default._handle.redispatch_boxed
_copy = _aten.copy_.default._handle.redispatch_boxed
_stock_pin = _aten._pin_memory.default._handle.redispatch_boxed
_stock_is_pinned = _aten.is_pinned.default._handle.redispatch_boxed

_MARK = "_simgpu_pinned"


def mark(storage: torch.UntypedStorage) -> None:
    """Call the host memory of `storage` pinned for as long as it lives."""
    # PyTorch keeps a storage's Python object, and this attribute, while the memory lives.
    setattr(storage, _MARK, True)


def mark_result(result: torch.Tensor) -> torch.Tensor:
    """Call the memory of a fresh host tensor pinned."""
    mark(result.untyped_storage())
    return result


def check_not_wanted(pin_memory: bool | None) -> None:
    """Raise where pinned memory was asked of a device."""
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")


def is_pinned(self: torch.Tensor, device: torch.device | None = None) -> bool:
    """`Tensor.is_pinned` of a CPU tensor."""
    if _world.device_count():
        storage = self.untyped_storage()
        return getattr(storage, _MARK, False) or (
            _allocator.offset is not None
            and _words[(storage._cdata >> 3) + _allocator.offset] == _allocator.address
        )
    return bool(_stock_is_pinned(_STOCK_KEYS, self, device))


def pin_memory(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """`Tensor.pin_memory` of a CPU tensor that is not pinned: a pinned copy, strides kept."""
    if not _world.device_count():
        return _stock_pin(_STOCK_KEYS, self, device)  # type: ignore[no-any-return]
    options: dict[str, Any] = {"dtype": self.dtype, "device": torch.device("cpu")}
    pinned: torch.Tensor = _empty_strided(HOST_KEYS, self.shape, self.stride(), **options)
    _copy(HOST_KEYS, pinned, self)
    return mark_result(pinned)


_HOST_ALLOCATOR = "_ZN3c1015GetCPUAllocatorEv"  # the function that says where it is
_ALLOCATOR_WORDS = 8  # more than it has: it allocates, and remembers nothing
_SEARCHED = 16  # words of a storage, and functions of hooks, among which we look
_GetAllocator = ctypes.CFUNCTYPE(ctypes.c_void_p)


class _Allocator:
    """The host's allocator under an address of its own, which C++ may keep for ever."""

    def __init__(self) -> None:
        self.address = 0
        self.offset: int | None = None  # in words, of the allocator within a storage

    def copy(self) -> bool:
        """Make the copy, once; returns whether there is one."""
        found = _virtual.library()
        where = None if found is None else getattr(found, _HOST_ALLOCATOR, None)
        if where is None or self.address:
            return bool(self.address)
        where.restype = ctypes.c_void_p
        size = 8 * _ALLOCATOR_WORDS
        make = ctypes.pythonapi.PyMem_RawMalloc
        make.restype, make.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        self.address = make(size)
        ctypes.memmove(self.address, where(), size)
        return True

    def place_in(self, storage: torch.UntypedStorage) -> int | None:
        """How many words into a storage of this allocator its address is."""
        start = storage._cdata >> 3
        words = [at for at in range(_SEARCHED) if _words[start + at] == self.address]
        return words[0] if len(words) == 1 else None


_allocator = _Allocator()


def let_hooks_allocate(hooks: _virtual.Table) -> bool:
    """Let tensors be made in pinned memory while there are devices; returns whether they can."""
    if not _allocator.copy():
        return False
    give = _GetAllocator(repeat(_allocator.address).__next__)  # runs no Python code (`_virtual`)
    options: dict[str, Any] = {"device": torch.device("cpu"), "pin_memory": True}
    for position in range(2, _SEARCHED):  # the first two destroy the object
        put_back = hooks.replace(position, give)
        try:
            made = _empty(HOST_KEYS, (1,), **options)
        except RuntimeError:  # the stock function was asked, and has no allocator
            continue
        finally:
            put_back()
        _allocator.offset = _allocator.place_in(made.untyped_storage())
        if _allocator.offset is not None:
            _while_there_are_devices(hooks, position, give)
        return _allocator.offset is not None
    return False


def _while_there_are_devices(hooks: _virtual.Table, position: int, give: Any) -> None:
    put_back: list[Any] = []

    def follow() -> None:
        if _world.active and not put_back:
            put_back.append(hooks.replace(position, give))
        elif put_back and not _world.active:
            put_back.pop()()

    _world.followers.append(follow)


_libraries: list[torch.library.Library] = []


def install() -> None:
    """Register pinning for CPU tensors; without simulated devices it stays PyTorch's own."""
    library = torch.library.Library("aten", "IMPL", "CPU")  # type: ignore[no-untyped-call]
    assert library.m is not None, "a library that was just made is open"
    library.m.impl("is_pinned", "CPU", is_pinned, False)
    library.m.impl("_pin_memory", "CPU", pin_memory, False)
    _libraries.append(library)
