"""Exchange the memory of two storages, or set the size of one, in C++'s StorageImpl.

A storage of a simulated device grows and shrinks in place by changing memory with another storage:
five words of the two C++ objects (StorageImpl) are exchanged, or the one with the size is set.
Where those words are is looked for, in two storages of different sizes made for that, by what they
must hold: address, device and size, as Python tells them of the same storage. They are compared
again in each storage before it is written to. Where they are not found, nothing is written and
UnsupportedError says so; everything but resizing works.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._native.device_bits import DEVICE_BITS, device_bits
from simgpu._native.process_memory import WORD, can_read, words
from simgpu.errors import UnsupportedError

_StorageBase: Any = torch._C.StorageBase
_SEARCHED = 16  # words; the memory is described within the first ten

# A StorageImpl holds {data, owner, function that frees it, device, size in bytes}: five words.
_DATA, _DEVICE, _SIZE, _MEMORY_WORDS = 0, 3, 4, 5


def _holds_memory(at: int, storage: torch.UntypedStorage) -> bool:
    """Whether the five words at `at` say what `storage` says of itself."""
    return (
        words[at + _DATA] == storage.data_ptr()
        and words[at + _DEVICE] & DEVICE_BITS == device_bits(storage.device)
        and words[at + _SIZE] == storage.nbytes()
    )


@functools.cache
def _memory_offset() -> int | None:
    """How many words into a StorageImpl its memory is described, or None."""
    found = set(range(_SEARCHED - _MEMORY_WORDS))
    for nbytes in (24, 40):
        storage: Any = _StorageBase.__new__(torch.UntypedStorage, nbytes)
        if not can_read(storage._cdata, WORD * _SEARCHED):
            return None
        start = storage._cdata >> 3
        found = {at for at in found if _holds_memory(start + at, storage)}
    return found.pop() if len(found) == 1 else None


def swap_memory(
    one: torch.UntypedStorage, other: torch.UntypedStorage, state: Any, memory: object
) -> None:
    """Swap the memory of two storages of one device, and set `state.memory` to `memory`.

    A signal handler runs before all of it or after all of it: CPython calls handlers where a
    function begins, a call returns or a loop repeats, and the last two lines do none of these.

    Raises UnsupportedError, and changes nothing, where this PyTorch's storages are not understood.
    """
    offset = _memory_offset()
    starts = [] if offset is None else [(s._cdata >> 3) + offset for s in (one, other)]
    understood = [_holds_memory(start, s) for start, s in zip(starts, (one, other), strict=False)]
    if understood != [True, True] or one.device != other.device:
        raise UnsupportedError(
            f"a {DEVICE_TYPE} storage cannot be resized with torch {torch.__version__}, whose "
            "storages have a memory layout that simgpu does not know: make a new tensor instead"
        )
    a, b = starts
    c, d = a + _MEMORY_WORDS, b + _MEMORY_WORDS
    words[a:c], words[b:d] = words[b:d], words[a:c]  # type: ignore[assignment]
    state.memory = memory


def set_size(storage: torch.UntypedStorage, nbytes: int) -> None:
    """Let a storage say that it has only the first `nbytes` of its bytes.

    Raises UnsupportedError, and changes nothing, where that is not possible.
    """
    offset = _memory_offset()
    start = (storage._cdata >> 3) + (offset or 0)
    if offset is None or not _holds_memory(start, storage) or not 0 <= nbytes <= storage.nbytes():
        raise UnsupportedError(f"a storage of {storage.nbytes()} bytes cannot say it has {nbytes}")
    words[start + _SIZE] = nbytes


def is_active() -> bool:
    """Whether storages can be resized with this PyTorch."""
    return _memory_offset() is not None
