"""Whether C++ still has references to a `torch.distributed.Work` that was made in Python.

A class of Python that derives from one of pybind11's has two halves. C++ holds its own half only,
so that Python does not see whether the object may still be waited for. The count of references
stands in the object of C++.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import distributed

from simgpu._native.process_memory import WORD, can_read, words

_VALUE, _HOLDER = 2, 3  # words behind the head of the Python half: where the C++ half is, twice
_COUNT = 1  # word of the C++ half: in its lower 32 bits the references, weak ones in the upper


def held_by_cpp(work: Any) -> bool:
    """Whether C++ has references to a Work; True where that cannot be told."""
    return not is_active() or _count(work) > 1


def is_active() -> bool:
    """Whether the count is where it is looked for."""
    return _follows()


@functools.cache
def _follows() -> bool:
    """Whether what is taken for the count goes up and down with references that C++ has."""
    if not distributed.is_available():
        return False

    class Probe(distributed.Work):
        def __init__(self) -> None:
            super().__init__()

    work: Any = Probe()
    start = _start(work)
    if words[(id(work) >> 3) + _HOLDER] != start or not can_read(start, (_COUNT + 1) * WORD):
        return False
    counts, boxes = [_count(work)], []
    for _ in range(2):
        boxes.append(work.boxed())
        counts.append(_count(work))
    boxes.clear()
    return [*counts, _count(work)] == [1, 2, 3, 1]


def _start(work: Any) -> int:
    return words[(id(work) >> 3) + _VALUE]


def _count(work: Any) -> int:
    return words[(_start(work) >> 3) + _COUNT] & 0xFFFF_FFFF
