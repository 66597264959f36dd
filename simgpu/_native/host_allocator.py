"""A copy of PyTorch's CPU allocator under another address, by which pinned memory is known."""

from __future__ import annotations

import ctypes

import torch

from simgpu._native import virtual_tables
from simgpu._native.dlpack_relabel import words

_HOST_ALLOCATOR = "_ZN3c1015GetCPUAllocatorEv"  # the function that says where it is
_ALLOCATOR_WORDS = 8  # more than it has: it allocates, and remembers nothing
SEARCHED = 16  # words of a storage, and functions of hooks, among which we look


class _Allocator:
    """The host's allocator under an address of its own, which C++ may keep for ever."""

    def __init__(self) -> None:
        self.address = 0
        self.offset: int | None = None  # in words, of the allocator within a storage

    def copy(self) -> bool:
        """Make the copy, once; returns whether there is one."""
        found = virtual_tables.library()
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
        found = [at for at in range(SEARCHED) if words[start + at] == self.address]
        return found[0] if len(found) == 1 else None


allocator = _Allocator()
