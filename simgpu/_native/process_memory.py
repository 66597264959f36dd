"""The memory of this process as one array of 8-byte words, and whether an address may be read.

`words[address >> 3]` is the word at `address`. Indexing this array is four times faster than making
a ctypes object for every address, and `dlpack_relabel` does it for every argument of every
operator. It checks nothing: whoever writes a word has to know what stands there.
"""

from __future__ import annotations

import ctypes
import os

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
    write = ctypes.CDLL(None).write
    write.restype = ctypes.c_ssize_t
    write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    reader, writer = os.pipe()
    try:
        return bool(write(writer, address, nbytes) == nbytes)
    finally:
        os.close(reader)
        os.close(writer)
