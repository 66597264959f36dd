"""The order of streams, events and the host: which work is over when something else begins.

Each stream of each device counts its work, and so does the host. A (vector) clock says, by stream,
how much of the work of that stream comes before. All threads of the host share one clock: what one
of them has waited for, the others are taken to know, as where one starts or joins the other.

An `Order` is kept by each that has to know: a capture, of the streams that have joined it;
`simgpu.races`, of accesses to memory; `simgpu.asynchronous`, of what has to run first. The clock of
`simgpu.clock` needs one number instead, the moment until which a stream is busy. That is kept where
sleep is (`Device.busy_until`), by stream, and by each event for its record.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from simgpu._core.hooks import Collective
from simgpu._core.streams import Key, key_of

Queue = Key  # that of a stream; of a process group and of the host, numbers that no stream has
HOST: Queue = (-1, -1)
FIRST_GROUP = -2  # and down: the number of the stream on which a process group communicates
Clock = dict[Queue, int]
Awaited = Queue | torch.Stream | torch.Event | Collective
_NOTHING: Clock = {}


def merge(clock: Clock, other: Clock) -> None:
    """Merge `other` into `clock`: what comes before `other` comes before `clock` too."""
    for queue, count in other.items():
        if count > clock.get(queue, 0):
            clock[queue] = count


class Order:
    """The clocks of all streams, of the host and of the events."""

    def __init__(self) -> None:
        self.clocks: dict[Queue, Clock] = {}
        self.events: weakref.WeakKeyDictionary[Any, Clock] = weakref.WeakKeyDictionary()
        self.host: Clock = {}
        self._host_changes = 0
        self._known: dict[Queue, int] = {}  # how many changes of the host's clock a queue has seen

    def clock(self, queue: Queue) -> Clock:
        """What comes before the next work of `queue`, as far as it has waited."""
        clock = self.clocks.get(queue)
        if clock is None:
            clock = self.clocks[queue] = {}
        return clock

    def begin(self, queue: Queue) -> tuple[Clock, int]:
        """The host asks `queue` for work: what comes before it, and its number."""
        clock = self.clock(queue)
        if self._known.get(queue) != self._host_changes:
            merge(clock, self.host)
            self._known[queue] = self._host_changes
        number = clock[queue] = clock.get(queue, 0) + 1
        return clock, number

    def until(self, awaited: torch.device | Awaited) -> Clock:
        """What has to be over before one of these has been waited for."""
        if isinstance(awaited, (torch.Event, Collective)):
            return self.events.get(awaited, _NOTHING)
        if isinstance(awaited, torch.device):
            clock: Clock = {}
            for queue, known in self.clocks.items():
                if queue[0] == awaited.index:
                    merge(clock, known)
            return clock
        return self.clocks.get(awaited if isinstance(awaited, tuple) else key_of(awaited), _NOTHING)

    def wait(self, queue: Queue, awaited: Awaited) -> None:
        """Later work of `queue` comes after the present work of another, or after an event."""
        merge(self.clock(queue), self.until(awaited))

    def record(self, event: torch.Event | Collective, queue: Queue) -> None:
        """`event` marks what `queue` has been asked for until now; so does the last collective."""
        self.events[event] = dict(self.clock(queue))

    def host_waits_for(self, clock: Clock) -> None:
        """Whatever the host asks for or does from now on comes after `clock`."""
        merge(self.host, clock)
        self._host_changes += 1

    def host_waits(self, awaited: torch.device | Awaited) -> None:
        """The host waits for all work of a device or stream, for an event or a collective."""
        self.host_waits_for(self.until(awaited))

    def host_acts(self) -> int:
        """The host does something itself: the number of it."""
        number = self.host[HOST] = self.host.get(HOST, 0) + 1
        self._host_changes += 1
        return number
