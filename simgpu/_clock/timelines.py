"""What ran on each stream and link from when to when, and the time of each host thread."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import torch

from simgpu._clock.topology import Route
from simgpu._core import world

# The time of the host: of the calling thread, of its helpers, and of each rank.
#
# PyTorch launches from several threads: those that run replicas, and one for each device in a
# backward pass. Their times must not depend on which of them the operating system runs first,
# so they are kept by device. A helper's time begins at that of the main thread, which waits
# meanwhile; when the main thread goes on, it has waited for all of them. Threads of Python also
# take turns at its global lock: what they launched together has taken no less than all of it one
# after the other. Threads of a backward pass are C++, and need no lock.


class Line:
    """The time of one thread, and where it jumped: because it waited, or followed another line."""

    __slots__ = ("_jumps", "name", "time")

    def __init__(self, name: str) -> None:
        self.name = name
        self.time = 0.0
        self._jumps: list[tuple[float, Line | None, float]] = []

    def wait(self, moment: float, other: Line | None = None, since: float | None = None) -> None:
        """Go on at `moment` if that is later: when some work on a device ended.

        Or when `other` goes on: from there on, or from `since`.
        """
        if moment > self.time:
            self._jumps.append((moment, other, moment if since is None else since))
            self.time = moment

    def last_jump(self, moment: float) -> tuple[float, Line | None, float] | None:
        """The last jump until `moment`: when it was, the line that was followed, and its time."""
        number = bisect_right(self._jumps, moment, key=lambda jump: jump[0])
        return self._jumps[number - 1] if number else None


class _Process:
    """The lines of one process, which in a world of ranks in threads is one rank."""

    def __init__(self, name: str, cost: float) -> None:
        self.main = Line(name)
        self._cost = cost
        self._helpers: dict[int, Line] = {}
        self.active: set[int] = set()
        """The devices for which threads have launched, since the main one went on last."""
        self.under_lock = 0
        """How many launches those of Python have made: they hold its lock meanwhile."""
        self._forked_at = 0.0

    def helper(self, device: int) -> Line:
        """The thread that launches for a device, beside the main one."""
        if not self.active:
            self._forked_at = self.main.time
        line = self._helpers.get(device)
        if line is None:
            line = self._helpers[device] = Line(f"{self.main.name}, device {device}")
        self.active.add(device)
        line.wait(self.main.time, self.main)
        return line

    def rejoin(self) -> None:
        """Make the main thread wait for its helpers."""
        main = self.main
        in_turns = self._forked_at + self.under_lock * self._cost
        for device in sorted(self.active):
            main.wait(self._helpers[device].time, self._helpers[device])
        main.wait(in_turns, main, since=self._forked_at)
        self.active.clear()
        self.under_lock = 0

    def __iter__(self) -> Iterator[Line]:
        yield self.main
        yield from (self._helpers[device] for device in sorted(self._helpers))


class Hosts:
    """All lines of the host.

    `cost` is what a launch takes of a thread's time; `rejoined` is called with a rank when its main
    thread goes on after its helpers.
    """

    def __init__(self, cost: float, rejoined: Callable[[int | None], None]) -> None:
        self.cost = cost
        self._rejoined = rejoined
        self._thread = threading.get_ident()
        self._processes: dict[int | None, _Process] = {}

    def line(self, device: int | None = None) -> Line:
        """The line of the calling thread, where it has to do with `device`."""
        process = self._process()
        in_backward = is_in_backward()
        if not in_backward and self._is_main():
            if process.active:
                process.rejoin()
                self._rejoined(world.rank_number())
            return process.main
        device = world.current_device() if device is None else device
        return process.helper(device)

    def launch(self, device: int) -> Line:
        """The line of the calling thread after it has launched something on `device`."""
        line = self.line(device)
        line.time += self.cost
        if not is_in_backward() and not self._is_main():
            self._process().under_lock += 1
        return line

    def hand_over(self, source: int, target: int) -> None:
        """A gradient goes to another device in a backward pass, whose thread waits for it."""
        if is_in_backward():
            process = self._process()
            giver = process.helper(source)
            process.helper(target).wait(giver.time, giver)

    def last(self) -> Line:
        """The line that has come the furthest."""
        ranks = sorted(self._processes, key=lambda rank: -1 if rank is None else rank)
        lines = (line for rank in ranks for line in self._processes[rank])
        return max(lines, key=lambda line: line.time, default=Line("host"))

    def _process(self) -> _Process:
        rank = world.rank_number()
        process = self._processes.get(rank)
        if process is None:
            name = "host" if rank is None else f"host of rank {rank}"
            process = self._processes.setdefault(rank, _Process(name, self.cost))
        return process

    def _is_main(self) -> bool:
        return world.rank_number() is not None or threading.get_ident() == self._thread


def is_in_backward() -> bool:
    """Whether the calling thread differentiates."""
    return torch._C._current_graph_task_id() != -1


Stream = tuple[int, int | str]  # a device's index, and the number of a stream there or its name


@dataclass(eq=False, slots=True)
class Span:
    """One kernel, copy or collective in simulated time; all moments in seconds.

    Attributes:
        op: the operator.
        kind: "kernel", "copy" or "collective".
        streams: those that it occupied: of a copy between devices the source's and the target's.
        begin, end: when it ran.
        launched: when the host had launched it.
        nbytes: of a copy or collective, what it moved.
        route: of a copy, such as "simgpu:0 to simgpu:1".
    """

    op: str
    kind: str
    streams: tuple[Stream, ...]
    begin: float
    end: float
    launched: float
    nbytes: int = 0
    route: str = ""
    line: Line | None = field(default=None, repr=False)

    @property
    def device(self) -> int:
        """The device on whose stream it was queued."""
        return self.streams[0][0]


class Timelines(dict[Stream, list[Span]]):
    """The spans of each stream, in the order in which they ran; each begins where others ended."""

    def __init__(self) -> None:
        super().__init__()
        self._links: dict[tuple[int, int], float] = {}

    def take_links(self, route: Route, ready: float, seconds: float) -> tuple[float, float]:
        """Copy over these links as soon as all are free: when that begins and ends."""
        begin = max((ready, *(self._links.get(hop, 0.0) for hop in route.hops)))
        self._links.update(dict.fromkeys(route.hops, begin + seconds))
        return begin, begin + seconds

    def add(self, span: Span) -> None:
        """Append what the latest work of its streams is now."""
        for stream in span.streams:
            self.setdefault(stream, []).append(span)

    def end(self, device: int | None = None) -> float:
        """When the last work of a device ends, or of all devices."""
        ends = (each[-1].end for (at, _), each in self.items() if device is None or at == device)
        return max(ends, default=0.0)

    def ending_at(self, moment: float, first: Sequence[Stream] = ()) -> Span | None:
        """The work that ended at `moment`: on one of the streams `first`, or else on any."""
        others = sorted(self, key=lambda stream: (stream[0], str(stream[1])))
        for stream in (*first, *others):
            spans = self.get(stream, ())
            number = bisect_left(spans, moment, key=attrgetter("end"))
            if number < len(spans) and spans[number].end == moment:
                return spans[number]
        return None


def covered(spans: Iterable[Span], since: float = 0.0) -> float:
    """Seconds after `since` in which at least one of the spans runs."""
    total, until = 0.0, since
    for begin, end in sorted((span.begin, span.end) for span in spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total
