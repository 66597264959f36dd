"""Replace virtual functions of C++ objects: the device guard, the hooks, the pinned allocator.

A device guard and hooks written in Python are asked for a few things; to the rest their C++ halves
answer by themselves, in virtual functions (torch/csrc/acc/Module.cpp). Here such an object gets a
table of virtual functions of its own: a copy of PyTorch's, in which a function can be replaced.

An object is only written to if it names the class that it should be of (`class_name`). No position
in a table is taken for granted: code that replaces a function tries it out by asking PyTorch what
it now answers, and puts it back where the answer is not the one that was given, or reads the order
of the functions in the headers that come with PyTorch (`guard_code`). What is put in a table
calls no Python function: at its entry the handler of a signal would run, and where that raises, as
Ctrl-C's does, the error would be lost and the answer be garbage. At the end of the process, when
nothing of Python may be called any more, the objects get their old tables back.
"""

from __future__ import annotations

import atexit
import ctypes
import mmap
import os
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import torch

from simgpu._native.memory import (
    WORD,
    can_read,
    device_bits,
    library,
    moves,
    offset_of,
    pipe,
    words,
)
from simgpu._util.naming import DEVICE_TYPE, MAX_DEVICES, PRIVATE_USE_1

# At least as many functions as such an object has; what follows them is copied too.
_FUNCTIONS = 40
_BEFORE = 2  # words in front of the functions: offset of the object, and its type_info

# What C++ points to may never be freed.
_kept: dict[int, Any] = {}


def class_name(address: int) -> str | None:
    """The mangled name of the C++ class of the object at `address`, or None if there is no such.

    By the Itanium C++ ABI an object begins with the address of its virtual functions; in front of
    these is the address of the class's type_info, which is {its own table, its name}.
    """
    if not can_read(address, WORD):
        return None
    functions = words[address >> 3]
    size = WORD * (_BEFORE + _FUNCTIONS)
    if not can_read(functions - WORD * _BEFORE, size) or words[(functions >> 3) - 2] != 0:
        return None
    type_info = words[(functions >> 3) - 1]
    if not can_read(type_info, 2 * WORD):
        return None
    name = words[(type_info >> 3) + 1]
    if not can_read(name & -WORD, WORD):  # names are not aligned to words
        return None
    return ctypes.string_at(name).decode("ascii", "replace")


class Table:
    """The virtual functions of the C++ object at `address`, whose class the caller has checked."""

    def __init__(self, address: int) -> None:
        self._at = address >> 3
        stock = words[self._at]
        self._functions = (ctypes.c_int64 * (_BEFORE + _FUNCTIONS))()
        ctypes.memmove(self._functions, stock - WORD * _BEFORE, ctypes.sizeof(self._functions))
        self._stock = tuple(self._functions)
        words[self._at] = ctypes.addressof(self._functions) + WORD * _BEFORE
        _kept[id(self)] = self
        atexit.register(words.__setitem__, self._at, stock)

    def replace(self, position: int, function: Any) -> Callable[[], None]:
        """Make a C function of `ctypes` be the one at `position`; returns what puts it back."""
        stock = self._functions[_BEFORE + position]
        self._functions[_BEFORE + position] = ctypes.cast(function, ctypes.c_void_p).value or 0
        _kept[id(function)] = function

        def put_back() -> None:
            self._functions[_BEFORE + position] = stock

        return put_back

    def is_replaced(self, position: int) -> bool:
        """Whether the function at `position` is one of ours now."""
        at = _BEFORE + position
        return bool(self._functions[at] != self._stock[at])


# C functions by which PyTorch's C++ gets a number from Python without running Python code.
#
# A function of a table of virtual functions (`Table`) must run no Python function, since
# Ctrl-C may raise at its entry. The `__next__` of an iterator written in C is none: ctypes calls it
# and hands its number to C++ in a register. Both answers here are numbers that fit one: a device,
# which is two bytes, and an address. Whether a position of a table really asks for that is tried
# out by the callers in `_backend`, who put the stock function back where PyTorch shows another
# answer.

# c10/core/impl/DeviceGuardImplInterface.h: type, exchangeDevice, getDevice, ...
GET_DEVICE = 2


def device_answer(indices: Iterator[int]) -> Any:
    """A C function that returns the device of type simgpu whose index comes next."""
    devices = [device_bits(torch.device(DEVICE_TYPE, index)) for index in range(MAX_DEVICES)]
    return ctypes.CFUNCTYPE(ctypes.c_uint16)(map(devices.__getitem__, indices).__next__)


def address_answer(address: int) -> Any:
    """A C function that returns `address`."""
    return ctypes.CFUNCTYPE(ctypes.c_void_p)(repeat(address).__next__)


# A copy of PyTorch's CPU allocator under another address, which marks pinned memory.
#
# C++ asks a backend for an allocator of pinned memory. It is given a byte copy of the CPU's: one
# word with the address of its virtual functions, which allocate as ever and remember nothing. A
# storage keeps the address of its allocator, so storages made by the copy differ from all
# others. The position of that address in a storage is looked for in one that the copy has made. The
# allocator is found by its exported name and has to name its class; where it does not, or where the
# address is not found in the storage, `pin_memory=True` raises as PyTorch does without such an
# allocator.

_HOST_ALLOCATOR = "_ZN3c1015GetCPUAllocatorEv"  # the function that says where it is
_ALLOCATOR_BYTES = 64  # more than it has


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
        # The memory behind it is copied too, as far as its page, of which all can be read.
        size = min(_ALLOCATOR_BYTES, mmap.PAGESIZE - source % mmap.PAGESIZE)
        make = ctypes.pythonapi.PyMem_RawMalloc
        make.restype, make.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        address = make(_ALLOCATOR_BYTES)
        ctypes.memset(address, 0, _ALLOCATOR_BYTES)
        ctypes.memmove(address, source, size)
        self.address = address
        return True

    def find_in(self, storage: torch.UntypedStorage) -> bool:
        """Note how many words into a storage of this allocator its address is, if that is so."""
        self.offset = offset_of([storage], 16, lambda at, _: words[at] == self.address)
        return self.offset is not None

    def made(self, storage: torch.UntypedStorage) -> bool:
        """Whether the memory of `storage` comes from this allocator."""
        return (
            self.offset is not None and words[(storage._cdata >> 3) + self.offset] == self.address
        )


allocator = _Allocator()


# Functions that one library of PyTorch calls in another, replaced for that library only.
#
# On Linux a library calls functions of others through a table of addresses, one slot for each
# function, which the dynamic linker fills. A slot is found as the linker finds it: in the table of
# relocations that is part of the loaded library, by the function's name. No code is changed.

# elf.h: entries of a dynamic section, and the relocation of a function that another library has.
_DT_NULL, _DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_JMPREL = 0, 2, 5, 6, 10, 23
_R_X86_64_JUMP_SLOT = 7
_RELOCATION = 3 * WORD  # address, symbol and type, addend
_SYMBOL = 3 * WORD  # its first four bytes: where its name is
_LINK_MAP = 2  # of dlinfo


class _LinkMap(ctypes.Structure):
    """The head of link_map, link.h: what the linker knows of a loaded library."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("dynamic", ctypes.c_uint64),
    )


def _link_map(loaded: ctypes.CDLL) -> _LinkMap | None:
    """What the linker knows of a library; None where it cannot be asked."""
    dlinfo = getattr(ctypes.CDLL(None), "dlinfo", None)
    if dlinfo is None:
        return None
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    found = ctypes.POINTER(_LinkMap)()
    if dlinfo(loaded._handle, _LINK_MAP, ctypes.byref(found)) or not found:
        return None
    return found.contents


def slot_of(caller: str, function: str) -> int | None:
    """Where `caller`, such as "torch_cpu", has the address of a function of another library.

    None where it has no such slot, or where the slot may not be written.
    """
    loaded = library(caller)
    linked = None if loaded is None else _link_map(loaded)
    if linked is None:
        return None
    entries: dict[int, int] = {}
    at = linked.dynamic >> 3
    while words[at] != _DT_NULL:
        entries[words[at]] = words[at + 1]
        at += 2
    wanted = (_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_JMPREL)
    if any(entries.get(entry, 0) <= 0 for entry in wanted):
        return None
    nbytes, names, symbols, names_nbytes, relocations = (entries[entry] for entry in wanted)
    if not all(can_read(address & -WORD, WORD) for address in (names, symbols, relocations)):
        return None  # addresses that the linker has not made absolute
    name = ctypes.string_at(names, names_nbytes).find(b"\0" + function.encode() + b"\0") + 1
    if not name:
        return None
    for relocation in range(relocations >> 3, relocations + nbytes >> 3, _RELOCATION // WORD):
        info = words[relocation + 1]
        if info & 0xFFFFFFFF != _R_X86_64_JUMP_SLOT:
            continue
        if words[symbols + (info >> 32) * _SYMBOL >> 3] & 0xFFFFFFFF == name:
            slot = int(linked.base) + words[relocation]
            return slot if _can_write(slot) else None
    return None


def _can_write(address: int) -> bool:
    """Whether the word at `address` may be written: the kernel writes there what it has already."""
    if not can_read(address, WORD):
        return False
    with pipe() as (reader, writer):
        os.write(writer, words[address >> 3].to_bytes(WORD, "little", signed=True))
        return moves("read", reader, address, WORD)


def replace(slot: int, function: Any) -> None:
    """Make the library of this slot call `function` instead, until the process ends."""
    atexit.register(words.__setitem__, slot >> 3, words[slot >> 3])
    words[slot >> 3] = ctypes.addressof(function)
    _kept[id(function)] = function


# Find the C++ objects behind our device guard and hooks, and make the guard answer for CUDA too.
#
# PyTorch keeps the guards of all device types in an array that libc10 exports by name. A Python
# object that wraps a C++ one holds its address in the first word after the object's head; that
# this is so is seen by the guard, whose address the array has, and by the classes that both objects
# name. Where one of these does not hold, nothing is written: PyTorch asks the Python objects, as it
# does by itself, and what only C++ can answer (the current device in `tensor.to("simgpu")`,
# `pin_memory=True`, "cuda" in C++) stays as PyTorch has it.

_CUDA = 1  # the device type, as C++ numbers it
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # the guards, by device type

# The tables that guard and hooks were given, in this order; empty where they were not understood.
tables: list[Table] = []


def _guards() -> Any:
    """Addresses of the registered guards by device type, or None where they cannot be found."""
    found = library()
    try:
        return found and (ctypes.c_int64 * (PRIVATE_USE_1 + 1)).in_dll(found, _REGISTRY)
    except ValueError:
        return None


def _in_python_object(instance: object) -> int:
    """What should be the address of the C++ object that a Python object wraps."""
    return words[(id(instance) >> 3) + object.__basicsize__ // 8]


def replace_vtables(guard: object, hooks: object) -> tuple[Table, Table] | None:
    """Give the registered guard and hooks tables of their own, or None where they are not found."""
    guards = _guards()
    if guards is None or _in_python_object(guard) != guards[PRIVATE_USE_1]:
        return None
    addresses = (_in_python_object(guard), _in_python_object(hooks))
    for address, expected in zip(addresses, ("DeviceGuard", "Hooks"), strict=True):
        name = class_name(address)
        if name is None or expected not in name:
            return None
    tables[:] = [Table(address) for address in addresses]
    return tables[0], tables[1]


def use_guard_for_cuda() -> Callable[[], None] | None:
    """Send questions about a CUDA device to our guard; returns what undoes it, None if it cannot.

    C++ asks the guard of a device that is named, in places where it can only end the process if
    there is none.
    """
    guards = _guards()
    if guards is None or not tables:  # without tables our guard was not found in the array
        return None
    stock, guards[_CUDA] = guards[_CUDA], guards[PRIVATE_USE_1]

    def undo() -> None:
        guards[_CUDA] = stock

    return undo
