"""What ran on each stream from when to when, and until when each link is taken."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from simgpu._simulation.timing.hosts import Line
from simgpu._simulation.timing.topology import Route

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
        self._free_from: dict[Stream, float] = {}
        self._links: dict[tuple[int, int], float] = {}

    def free_from(self, streams: Iterable[Stream]) -> float:
        """When the last of these streams has done its work."""
        return max(self._free_from.get(stream, 0.0) for stream in streams)

    def wait(self, stream: Stream, moment: float) -> None:
        """Let later work of a stream begin at `moment`, or later."""
        self._free_from[stream] = max(self._free_from.get(stream, 0.0), moment)

    def links_free_from(self, route: Route) -> float:
        """When the last link on the way is free."""
        return max((self._links.get(hop, 0.0) for hop in route.hops), default=0.0)

    def take_links(self, route: Route, until: float) -> None:
        """Let later copies over these links wait until then."""
        self._links.update(dict.fromkeys(route.hops, until))

    def add(self, span: Span) -> None:
        """Append what the latest work of its streams is now."""
        for stream in span.streams:
            self.setdefault(stream, []).append(span)
            self._free_from[stream] = span.end

    @property
    def end(self) -> float:
        """When the last work of all ends."""
        return max((spans[-1].end for spans in self.values()), default=0.0)

    def ending_at(self, moment: float, first: Sequence[Stream] = ()) -> Span | None:
        """The work that ended at `moment`: on one of the streams `first`, or else on any."""
        for stream in (*first, *sorted(self, key=_order)):
            spans = self.get(stream, ())
            number = bisect_left(spans, moment, key=_end)
            if number < len(spans) and spans[number].end == moment:
                return spans[number]
        return None


def _end(span: Span) -> float:
    return span.end


def _order(stream: Stream) -> tuple[int, str]:
    return stream[0], str(stream[1])
