"""A copy of PyTorch's CPU allocator under another address, which marks pinned memory.

C++ asks a backend for an allocator of pinned memory. It is given a byte copy of the CPU's: one word
with the address of its virtual functions, which allocate as ever and remember nothing. A storage
keeps the address of its allocator, so storages made by the copy can be told from all others. Where
in a storage that address stands is looked for in one that the copy has made. The allocator is found
by its exported name and has to name its class; where it does not, or where the address is not found
in the storage, `pin_memory=True` raises as PyTorch does without such an allocator.
"""

from __future__ import annotations

import ctypes
import mmap

import torch

from simgpu._native.c10_library import library
from simgpu._native.process_memory import WORD, can_read, words
from simgpu._native.virtual_tables import class_name

_HOST_ALLOCATOR = "_ZN3c1015GetCPUAllocatorEv"  # the function that says where it is
_ALLOCATOR_BYTES = 64  # more than it has
SEARCHED = 16  # words of a storage, and functions of hooks, among which we look


class _Allocator:
    """The host's allocator under an address of its own, which C++ may keep for ever."""

    def __init__(self) -> None:
        self.address = 0
        self.offset: int | None = None  # in words, of the allocator within a storage

    def copy(self) -> bool:
        """Make the copy, once; returns whether there is one."""
        if self.address:
            return True
        found = library()
        where = None if found is None else getattr(found, _HOST_ALLOCATOR, None)
        if where is None:
            return False
        where.restype = ctypes.c_void_p
        source = where()
        if "Allocator" not in (class_name(source or 0) or ""):
            return False
        # What lies behind it is copied too, as far as its page, of which all can be read.
        size = min(_ALLOCATOR_BYTES, mmap.PAGESIZE - source % mmap.PAGESIZE)
        make = ctypes.pythonapi.PyMem_RawMalloc
        make.restype, make.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        address = make(_ALLOCATOR_BYTES)
        ctypes.memset(address, 0, _ALLOCATOR_BYTES)
        ctypes.memmove(address, source, size)
        self.address = address
        return True

    def place_in(self, storage: torch.UntypedStorage) -> int | None:
        """How many words into a storage of this allocator its address is."""
        if not can_read(storage._cdata, WORD * SEARCHED):
            return None
        start = storage._cdata >> 3
        found = [at for at in range(SEARCHED) if words[start + at] == self.address]
        return found[0] if len(found) == 1 else None

    def made(self, storage: torch.UntypedStorage) -> bool:
        """Whether the memory of `storage` comes from this allocator."""
        return (
            self.offset is not None and words[(storage._cdata >> 3) + self.offset] == self.address
        )


allocator = _Allocator()


def is_active() -> bool:
    """Whether tensors can be made in pinned memory."""
    return allocator.offset is not None
