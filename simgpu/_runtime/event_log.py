"""`EventLog`: what was allocated and given back on a device, for whoever asks where it would lie.

Writing it down costs next to nothing. A model of CUDA's caching allocator follows the events when
somebody asks (`caching_allocator`), and where there might be no room.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from simgpu._runtime.caching_allocator import LARGE_SEGMENT, SMALL_SEGMENT, CachingAllocator

# Segments that a stream begins for a few bytes.
BEGUN = SMALL_SEGMENT + LARGE_SEGMENT


def about(token: int, requested: int, stream: int) -> int:
    """How many of the bytes of a block were asked for, and the stream, as one number.

    It costs the garbage collector nothing, as a tuple would.
    """
    return stream << 9 | token - requested


class Ledger(Protocol):
    """What a device knows of its memory."""

    index: int
    capacity: int
    limit: int

    def live(self) -> list[int]:
        """The bytes of every allocation that lives: the objects that were noted."""
        ...


class EventLog:
    """What was taken and given back on one device since its placement last followed it.

    Bytes that were taken are two numbers in a row: the bytes, as a number object of its own, and
    `about`. All else is a tuple: of the same object, where it was given back; of the same object
    and a stream that uses it; of None and the streams that are busy when bytes are taken next.
    """

    __slots__ = (
        *("_device", "_events", "_lock", "_placed_twice", "_placement", "_spoilt", "_underway"),
        *("note", "note_taken"),
    )

    def __init__(self, device: Ledger) -> None:
        self._device = device
        self._events: deque[Any] = deque()
        self.note: Callable[[tuple[Any, ...]], None] = self._events.append
        self.note_taken: Callable[[tuple[int, int]], None] = self._events.extend
        self._placement = self._empty()
        # By id, what has been placed anew, and whose events may come all the same.
        self._placed_twice: set[int] = set()
        # Whether a step is being placed: by another thread, or by this one, which a finalizer or a
        # signal handler has interrupted; and whether one was given up in the middle.
        self._underway = self._spoilt = False
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def reserved(self) -> int:
        """Bytes of the segments that there were when the events were last followed."""
        return self._placement.reserved

    def _empty(self) -> CachingAllocator:
        device = self._device
        return CachingAllocator((device.index + 1) << 40, device.capacity < LARGE_SEGMENT)

    def placement(self) -> CachingAllocator:
        """The segments and blocks that CUDA's caching allocator would have by now."""
        with self._lock:
            if not self._underway:
                with self._step():
                    self._follow()
            return self._placement

    def place(self, token: int, requested: int, stream: int) -> bool:
        """Whether there is room for `token`, which then has a block: nothing is to be noted."""
        with self._lock:
            if self._underway:
                self.note_taken((token, about(token, requested, stream)))
                return True
            with self._step():
                self._follow()
                return self._placement.allocate(token, requested, stream, self._device.limit)

    def take_back(self, token: int) -> None:
        """Undo `place`."""
        with self._lock:
            if self._underway:
                self.note((token,))
                return
            with self._step():
                self._follow()
                self._placement.take_back(token)

    def forget(self) -> None:
        """Place what lives anew when this is next asked: it may hold what does not."""
        self._spoilt = True

    @contextmanager
    def _step(self) -> Iterator[None]:
        self._underway = True
        try:
            yield
        except BaseException:
            self._spoilt = True  # half of an event may be in the placement
            raise
        finally:
            self._underway = False

    def _follow(self) -> None:
        if self._spoilt:
            self._place_anew()
        events, limit, placement = self._events, self._device.limit, self._placement
        while events:
            event = events.popleft()
            if not isinstance(event, tuple):
                how = events.popleft()
                if self._placed_twice and id(event) in self._placed_twice:
                    continue
                stream, rest = how >> 9, how & 511
                if not placement.allocate(event, event - rest, stream, limit):
                    # What was let in has a place, also where threads were let in at the same time.
                    placement.allocate(event, event - rest, stream, 1 << 62)
            elif len(event) == 1:
                placement.free(event[0])
            elif event[0] is None:
                placement.busy_at_next_allocation(event[1])
            else:
                placement.use(*event)
        self._placed_twice.clear()

    def _place_anew(self) -> None:
        """Place what lives, in some order."""
        self._events.clear()
        placement, known = self._empty(), self._placement
        for token in self._device.live():
            piece = known.piece_of(token)
            requested = int(token) if piece is None else piece.requested
            stream = 0 if piece is None else piece.segment.pool.stream
            placement.allocate(token, requested, stream, 1 << 62)
            self._placed_twice.add(id(token))
        self._placement, self._spoilt = placement, False
