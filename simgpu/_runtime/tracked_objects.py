"""Objects that Python's garbage collector keeps track of, by their class, the newest first.

A table of them would cost something wherever one is made. Looking for them costs nothing until
somebody asks; then it takes the longer the more objects the program has, most of which are old. So
whoever has found all that there is goes no further.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Iterator
from itertools import compress, repeat
from typing import TypeVar

T = TypeVar("T")


def newest_first(kind: type[T]) -> Iterator[T]:
    """Every object whose class is `kind` itself; one that grows older meanwhile may come twice.

    What `gc.freeze` has hidden comes last. It is not hidden again: nobody could say what it was.
    """
    for generation in range(3):
        yield from _of_generation(kind, generation)
    if gc.get_freeze_count():
        gc.unfreeze()
        yield from _of_generation(kind, 2)


def _of_generation(kind: type[T], generation: int) -> list[T]:
    objects = gc.get_objects(generation)
    objects.reverse()
    # A list of its own: whoever goes no further must not keep all others alive.
    return [*compress(objects, map(operator.is_, map(type, objects), repeat(kind)))]
