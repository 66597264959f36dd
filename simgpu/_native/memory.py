"""The memory of this process as an array of words; symbols of PyTorch's libraries; devices in C++.

`words[address >> 3]` is the word at `address`. Indexing this array is four times faster than making
a ctypes object for every address, and `relabel` does it for every argument of every
operator. It checks nothing: the code that writes a word has to know its meaning.

May import: `_util`, `torch`, `ctypes`.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from simgpu._util.naming import PRIVATE_USE_1

WORD = 8  # bytes

# 2^57 bytes: more than a program's addresses have on any platform that PyTorch has a build for.
words = (ctypes.c_int64 * (1 << 54)).from_address(0)


def can_read(address: int, nbytes: int) -> bool:
    """Whether `nbytes` bytes at `address` are mapped, aligned to words and may be read.

    The kernel is asked to copy them into a pipe: where it cannot read them it returns an error,
    while a load from here would end the process.
    """
    if address <= 0 or address % WORD or not 0 < nbytes <= 4096:
        return False
    with pipe() as (_, writer):
        return moves("write", writer, address, nbytes)


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """The ends of a pipe, to read from and to write to."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def moves(function: str, end: int, address: int, nbytes: int) -> bool:
    """Whether the C function `read` or `write` moves all of these bytes from or to a pipe."""
    call = getattr(ctypes.CDLL(None), function)
    call.restype = ctypes.c_ssize_t
    call.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    return bool(call(end, address, nbytes) == nbytes)


def offset_of(objects: Sequence[Any], count: int, holds: Callable[[int, Any], bool]) -> int | None:
    """Which of the first `count` words of C++ objects it is where `holds` is true of each of them.

    `holds` takes an index in `words`, and may look at four more words, and the object. None where
    that is no word or more than one.
    """
    if not all(can_read(each._cdata, WORD * (count + 4)) for each in objects):
        return None
    found = [
        at for at in range(count) if all(holds((each._cdata >> 3) + at, each) for each in objects)
    ]
    return found[0] if len(found) == 1 else None


# Find functions and variables of libraries of PyTorch, such as libc10, by their C++ names.

_ENDINGS = {"linux": "so", "darwin": "dylib"}


def library(name: str = "c10") -> ctypes.CDLL | None:
    """A library, or None where names, calls and classes are not as on Linux and macOS.

    The virtual functions of a class are laid out by the Itanium C++ ABI there; not on Windows.
    """
    ending = _ENDINGS.get(sys.platform)
    if ending is None or sys.byteorder != "little":
        return None
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"lib{name}.{ending}"))
    except OSError:
        return None


# How C++ stores a torch.device: a byte for its type, and the next one for its index.

DEVICE_BITS = 0xFFFF  # of a word, those that are the device
_NO_INDEX = 0xFF  # -1
CPU_BITS = _NO_INDEX << 8


def device_bits(device: torch.device) -> int:
    """A c10::Device as a number of two bytes: "cpu", or a device of simgpu's type."""
    kind = 0 if device.type == "cpu" else PRIVATE_USE_1
    return kind | (_NO_INDEX if device.index is None else device.index) << 8
