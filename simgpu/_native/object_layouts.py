"""Words inside PyTorch's storages and generators, which have no setter in Python.

Two things that a C++ backend sets directly have no name in Python: which memory a storage stands
on, and which device a generator is of. Both are a few words of a C++ object whose address Python
knows. Where those words are is never assumed: they are looked for among the first words of the
object by what they must hold, and looked at again before each write. Where they cannot be found,
as another PyTorch may lay its objects out otherwise, nothing is written and the caller is told.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from simgpu._naming import DEVICE_TYPE, PRIVATE_USE_1
from simgpu._native.dlpack_relabel import words
from simgpu.errors import UnsupportedError

_StorageBase: Any = torch._C.StorageBase
_SEARCHED = 16  # words; what is looked for lies within the first ten

# What a device looks like: its type in one byte, its index in the next (-1 for the CPU).
_DEVICE_BITS = 0xFFFF
_NO_INDEX = 0xFF
_CPU_BITS = _NO_INDEX << 8

# A StorageImpl holds {data, owner, function that frees it, device, size in bytes}: five words.
_DATA, _DEVICE, _SIZE, _MEMORY_WORDS = 0, 3, 4, 5


def _device_bits(device: torch.device) -> int:
    kind = 0 if device.type == "cpu" else PRIVATE_USE_1
    return kind | (_NO_INDEX if device.index is None else device.index) << 8


def _holds_memory(at: int, storage: torch.UntypedStorage) -> bool:
    """Whether the five words at `at` say what `storage` says of itself."""
    return (
        words[at + _DATA] == storage.data_ptr()
        and words[at + _DEVICE] & _DEVICE_BITS == _device_bits(storage.device)
        and words[at + _SIZE] == storage.nbytes()
    )


@functools.cache
def _memory_offset() -> int | None:
    """How many words into a StorageImpl its memory is described, or None."""
    found: set[int] = set()
    for nbytes in (24, 40):
        storage: Any = _StorageBase.__new__(torch.UntypedStorage, nbytes)
        start = storage._cdata >> 3
        fitting = {at for at in range(_SEARCHED) if _holds_memory(start + at, storage)}
        found = fitting if not found else found & fitting
    return found.pop() if len(found) == 1 else None


def swap_memory(one: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Let two storages of one device change places: whoever stands on `one` sees the other's bytes.

    Raises UnsupportedError, and changes nothing, where this PyTorch's storages are not understood.
    """
    offset = _memory_offset()
    starts = [] if offset is None else [(s._cdata >> 3) + offset for s in (one, other)]
    understood = [_holds_memory(start, s) for start, s in zip(starts, (one, other), strict=False)]
    if understood != [True, True] or one.device != other.device:
        raise UnsupportedError(
            f"a {DEVICE_TYPE} storage cannot be resized with torch {torch.__version__}, whose "
            "storages are laid out otherwise than simgpu knows: make a new tensor instead"
        )
    first, second = starts
    for word in range(_MEMORY_WORDS):
        at, to = first + word, second + word
        words[at], words[to] = words[to], words[at]


def set_size(storage: torch.UntypedStorage, nbytes: int) -> None:
    """Let a storage say that it has only the first `nbytes` of its bytes.

    Raises UnsupportedError, and changes nothing, where that is not possible.
    """
    offset = _memory_offset()
    start = (storage._cdata >> 3) + (offset or 0)
    if offset is None or not _holds_memory(start, storage) or not 0 <= nbytes <= storage.nbytes():
        raise UnsupportedError(f"a storage of {storage.nbytes()} bytes cannot say it has {nbytes}")
    words[start + _SIZE] = nbytes


@functools.cache
def _generator_offset() -> int | None:
    """How many words into a generator its device is, or None."""
    scratch: Any = torch._C.Generator()
    start = scratch._cdata >> 3
    key_set = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU).raw_repr()
    for at in range(_SEARCHED):
        word = words[start + at]
        here = word & _DEVICE_BITS == _CPU_BITS and words[start + at + 1] == key_set
        if here and _writes_device(scratch, start + at, word):
            return at
    return None


def _writes_device(scratch: Any, at: int, word: int) -> bool:
    wanted = torch.device(DEVICE_TYPE, 5)
    words[at] = word & ~_DEVICE_BITS | _device_bits(wanted)
    written: bool = scratch.device == wanted
    words[at] = word
    return written


def label_generator(generator: Any, device: torch.device) -> bool:
    """Let a CPU generator say that it is of `device`; the host's kernels then refuse it.

    Returns whether that was possible; if not, nothing was changed.
    """
    offset = _generator_offset()
    if offset is None:
        return False
    at = (generator._cdata >> 3) + offset
    if words[at] & _DEVICE_BITS != _CPU_BITS:
        return False
    words[at] = words[at] & ~_DEVICE_BITS | _device_bits(device)
    return True
