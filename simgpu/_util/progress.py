"""A line about the progress of long work, for a person at a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_now = time.monotonic  # within a schedule it is another clock
AFTER = 2.0
"""Seconds before the first line: work that is shorter shows none."""
EVERY = 0.2
"""Seconds between two lines."""
_CLEAR = "\r\x1b[K"


def counted(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield `items`, and say on stderr at which one the caller is; on a terminal only.

    Args:
        items: what the caller works through, or what it makes meanwhile.
        total: how many there are at most.
        what: a noun for one of them.

    The line replaces itself, and is taken away at the end.
    """
    began, shown = _now(), 0.0
    try:
        for number, item in enumerate(items, start=1):
            now = _now()
            if now >= max(began + AFTER, shown + EVERY) and sys.stderr.isatty():
                shown = now
                left = (now - began) / number * (total - number)
                sys.stderr.write(f"{_CLEAR}{what} {number} of {total}, about {left:.0f} s left")
                sys.stderr.flush()
            yield item
    finally:
        if shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
