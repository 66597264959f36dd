"""The critical path: the chain of kernels, copies and launches that decides when the end comes.

From the work that ends last back to the beginning: each step begins when the one before it ends,
be it other work, which it had to wait for, or the host, which had not launched it before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simgpu._simulation.timing.hosts import Line
from simgpu._simulation.timing.timelines import Span, Timelines


@dataclass(frozen=True)
class Step:
    """Work of one kind, one after the other in one place, between two moments.

    `kind` is "kernel", "copy", "collective" or "launch", which is the host's time; `count` tells
    how many there are, `op` the longest of them.
    """

    kind: str
    place: str
    begin: float
    end: float
    count: int
    op: str

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def critical_path(timelines: Timelines, last: Line, end: float) -> list[Step]:
    """The steps from the beginning to `end`, when `last` of the host's lines had come there.

    The work that ends last is taken where there is some; then the host's.
    """
    return list(_joined(reversed(list(_backwards(timelines, last, end)))))


def _backwards(timelines: Timelines, line: Line, end: float) -> Iterator[Step]:
    span = timelines.ending_at(end)
    moment = end
    while moment > 0:
        if span is None:
            begin, span, line = _before_launch(timelines, line, moment)
            if begin < moment:
                yield Step("launch", line.name, begin, moment, 1, "")
            moment = begin
            continue
        place = span.route or f"device {span.device}"
        if span.kind == "collective":
            place = f"devices {', '.join(str(device) for device, _ in span.streams)}"
        if span.end > span.begin:
            yield Step(span.kind, place, span.begin, span.end, 1, span.op)
        moment, current = span.begin, span
        line = line if current.line is None else current.line
        span = None
        if current.begin > current.launched or current.line is None:
            span = timelines.ending_at(moment, current.streams)
            if span is current:  # of no length
                span = None


def _before_launch(
    timelines: Timelines, line: Line, moment: float
) -> tuple[float, Span | None, Line]:
    """What a line of the host did until `moment`: since when, and after which work or line."""
    jump = line.last_jump(moment)
    if jump is None:
        return 0.0, None, line
    jumped, other, at = jump
    if other is None:
        return jumped, timelines.ending_at(jumped), line
    if jumped < moment:
        return jumped, None, line
    return at, None, other


def _joined(steps: Iterator[Step]) -> Iterator[Step]:
    """Consecutive steps of one kind in one place as one, which goes by the longest of them."""
    last: Step | None = None
    longest = 0.0
    for step in steps:
        if last is not None and (last.kind, last.place) == (step.kind, step.place):
            op = step.op if step.seconds > longest else last.op
            longest = max(longest, step.seconds)
            last = Step(last.kind, last.place, last.begin, step.end, last.count + 1, op)
            continue
        if last is not None:
            yield last
        last, longest = step, step.seconds
    if last is not None:
        yield last
