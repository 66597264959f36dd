"""The collectives of all process groups in time: each begins when its last rank has come.

Where the ranks are threads of this process (`simgpu.ranks`), the arrivals of all are known. A rank
that is a process of its own knows but itself, and takes it that the others come as it does.
"""

from __future__ import annotations

from simgpu._distributed.communicators import threads
from simgpu._runtime.instruments import Collective
from simgpu._simulation.failures.faults import slow_factor
from simgpu._simulation.timing import collectives
from simgpu._simulation.timing.timelines import Span, Timelines
from simgpu._simulation.timing.topology import Route, Topology


class _Meeting:
    """One collective: who has come when, and what came before it in the group."""

    def __init__(self, op: str, about: Collective, members: int, previous: _Meeting | None) -> None:
        self.op, self.about, self.members, self.previous = op, about, members, previous
        self.arrivals: dict[int, float] = {}  # of each rank
        self.devices: dict[int, int] = {}
        self.nbytes = 0
        self.times: tuple[float, float] | None = None


class Groups:
    """The collectives of a program, each on a stream of its group as with NCCL."""

    def __init__(self, timelines: Timelines, topology: Topology) -> None:
        self._timelines, self._topology = timelines, topology
        self._meetings: dict[object, _Meeting] = {}
        self._last: dict[str, _Meeting] = {}

    def arrive(self, about: Collective, op: str, device: int, moment: float) -> None:
        """The stream of a rank has come to a collective."""
        key = _key(about)
        meeting = self._meetings.get(key)
        rank = about.rank
        if meeting is None:
            in_threads = threads.rank is not None
            between_two = about.peer is not None
            members = (2 if between_two else len(about.ranks)) if in_threads else 1
            previous = None if between_two else self._last.get(about.group)
            meeting = _Meeting(op.removeprefix("c10d."), about, members, previous)
            self._meetings[key] = meeting
            if not between_two:
                self._last[about.group] = meeting
        meeting.arrivals[rank] = moment
        meeting.devices[rank] = device
        meeting.nbytes = max(meeting.nbytes, about.nbytes)

    def is_complete(self, about: Collective) -> bool:
        """Whether all ranks have come."""
        meeting = self._meetings.get(_key(about))
        return meeting is not None and len(meeting.arrivals) >= meeting.members

    def times(self, about: Collective) -> tuple[float, float] | None:
        """When it begins and ends; None where ranks are missing."""
        if not self.is_complete(about):
            return None
        return self._times(self._meetings[_key(about)])

    def end_on(self, device: int) -> float:
        """When the last collective ends on a device, of those that all ranks have come to."""
        ends = [0.0]
        for meeting in self._meetings.values():
            if device in meeting.devices.values() and len(meeting.arrivals) >= meeting.members:
                ends.append(self._times(meeting)[1])
        return max(ends)

    def _times(self, meeting: _Meeting) -> tuple[float, float]:
        if meeting.times is None:
            before = 0.0 if meeting.previous is None else self._times(meeting.previous)[1]
            devices = [meeting.devices[rank] for rank in sorted(meeting.devices)]
            begin = max(before, *meeting.arrivals.values())
            members = 2 if meeting.about.peer is not None else len(meeting.about.ranks)
            routes = self._routes(devices, members)
            seconds = collectives.seconds(meeting.op, members, meeting.nbytes, routes)
            end = begin + seconds * max(map(slow_factor, devices))
            meeting.times, meeting.previous = (begin, end), None
            on = tuple((device, f"nccl {meeting.about.group}") for device in devices)
            arrived = max(meeting.arrivals.values())
            span = Span(meeting.op, "collective", on, begin, end, arrived, meeting.nbytes)
            self._timelines.add(span)
        return meeting.times

    def _routes(self, devices: list[int], members: int) -> list[Route]:
        """The ways around the ring."""
        ring = devices if len(devices) == members else list(range(members))
        following = [*ring[1:], ring[0]]
        pairs = [pair for pair in zip(ring, following, strict=True) if pair[0] != pair[1]]
        routes = [self._topology.route(*pair) for pair in pairs]
        return [route for route in routes if route is not None]


def _key(about: Collective) -> object:
    """What is equal for all ranks of one collective."""
    if about.peer is None:
        return about.group, about.number
    pair = (about.rank, about.peer) if about.sends else (about.peer, about.rank)
    return about.group, pair, about.tag, about.number
