"""`EventLog`: what was allocated and given back on a device, for whoever asks where it would lie.

Writing it down costs next to nothing. A model of CUDA's caching allocator follows the events when
somebody asks (`caching_allocator`).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from simgpu._runtime.caching_allocator import CachingAllocator

# Events of a device that are kept: 10 MB where nobody ever asks.
LOG_LENGTH = 2**17


class Ledger(Protocol):
    """What a device knows of its memory."""

    index: int
    limit: int
    peak: int
    taken_count: int
    freed_count: int

    def live(self) -> list[int]:
        """The bytes of every allocation that lives: the objects that were noted."""
        ...


class EventLog:
    """What was taken and given back on one device since the placement last followed it.

    An event is the bytes that were taken, as a number object of its own, or a tuple of the same
    object: it was given back. An allocation that an interrupt ends before it is noted has the
    second alone.
    """

    __slots__ = ("_events", "_followed", "_lock", "_placement", "note")

    def __init__(self) -> None:
        self._events: deque[int | tuple[int]] = deque(maxlen=LOG_LENGTH)
        self.note = self._events.append
        # How many events there had been when they were last followed; -1 after half of one.
        self._followed = 0
        self._placement: CachingAllocator | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._events)

    def placement(self, ledger: Ledger) -> CachingAllocator:
        """The segments and blocks that CUDA's caching allocator would have by now.

        It follows what happened when it is asked, exactly for as long as the log is: after
        LOG_LENGTH events without a question, it places what lives anew, and reserves what was
        once needed.
        """
        with self._lock:
            try:
                return self._follow(ledger)
            except BaseException:
                self._placement, self._followed = None, -1  # half of an event is in it
                raise

    def _follow(self, ledger: Ledger) -> CachingAllocator:
        events, limit = self._events, ledger.limit
        count = ledger.taken_count + ledger.freed_count
        full = len(events) == events.maxlen and count - self._followed > len(events)
        if full or self._followed < 0:
            self._placement = self._placed_anew(ledger)
        elif self._placement is None:
            self._placement = _empty_placement(ledger)
        placement = self._placement
        while events:
            placement.follow(events.popleft(), limit)
        self._followed = count
        return placement

    def _placed_anew(self, ledger: Ledger) -> CachingAllocator:
        """What lived when the log begins, in some order.

        Those are the ones that live or that it tells to be given back, but not to be allocated.
        """
        events = list(self._events)
        allocated = {id(event) for event in events if not isinstance(event, tuple)}
        freed = [event[0] for event in events if isinstance(event, tuple)]
        placement = _empty_placement(ledger)
        for token in (*freed, *ledger.live()):
            if id(token) not in allocated:
                placement.follow(token, ledger.limit)
        before = 0 if self._placement is None else self._placement.reserved
        placement.reserve_at_least(max(before, ledger.peak))
        return placement


def _empty_placement(ledger: Ledger) -> CachingAllocator:
    return CachingAllocator((ledger.index + 1) << 40)
