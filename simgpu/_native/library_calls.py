"""Functions that one library of PyTorch calls in another, replaced for that library only.

On Linux a library calls functions of others through a table of addresses, one slot for each
function, which the dynamic linker fills. A slot is found as the linker finds it: in the table of
relocations that is part of the loaded library, by the function's name. No code is changed.
"""

from __future__ import annotations

import atexit
import ctypes
import os
from typing import Any

from simgpu._native.c10_library import library
from simgpu._native.process_memory import WORD, can_read, words

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
    read = ctypes.CDLL(None).read
    read.restype = ctypes.c_ssize_t
    read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    reader, writer = os.pipe()
    try:
        os.write(writer, words[address >> 3].to_bytes(WORD, "little", signed=True))
        return bool(read(reader, address, WORD) == WORD)
    finally:
        os.close(reader)
        os.close(writer)


_kept: list[Any] = []  # what C++ calls may never be freed


def replace(slot: int, function: Any) -> None:
    """Let the library of this slot call `function` instead, until the process ends."""
    atexit.register(words.__setitem__, slot >> 3, words[slot >> 3])
    words[slot >> 3] = ctypes.addressof(function)
    _kept.append(function)
