"""`Summary`: busy, waiting and copying time of each device, and the critical path."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from simgpu._clock.timelines import Line, Span, Timelines
from simgpu._util.naming import DEVICE_TYPE, plural, visible_text

# The critical path: the chain of kernels, copies and launches that decides when the end comes.
#
# From the work that ends last back to the beginning: each step begins when the one before it ends,
# be it other work, which it had to wait for, or the host, which had not launched it before.


@dataclass(frozen=True)
class Step:
    """Work of one kind, one after the other in one place, between two moments.

    `kind` is "kernel", "copy", "collective" or "launch", which is the host's time; `count` is
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


@dataclass(frozen=True)
class Share:
    """What one device did until the end, in seconds that add up to all of it.

    Attributes:
        busy: it computed, on one stream at least.
        copying: it only took part in copies or collectives.
        waiting: it did neither.
        kernels, copies: how many there were.
    """

    device: str
    busy: float
    copying: float
    waiting: float
    kernels: int
    copies: int


@dataclass(frozen=True)
class Summary:
    """An estimate of where the time of a program goes; `str(summary)` is a table.

    Attributes:
        seconds: from the beginning to the end of all work.
        shares: what each device did.
        path: the critical path, which decides when the end comes.
        steps: how long each step took, from one `optimizer.step()` to the next; the first one is
            from the beginning.
        about: the models and the topology.
    """

    seconds: float
    shares: Sequence[Share]
    path: Sequence[Step]
    steps: Sequence[float]
    about: str

    @property
    def step_seconds(self) -> float | None:
        """The median step, without the first; None where no optimizer has stepped."""
        return statistics.median_low(self.steps[1:] or self.steps) if self.steps else None

    def __str__(self) -> str:
        lines = [f"estimate for {self.about}: {duration(self.seconds)}"]
        if self.step_seconds is not None:
            count = len(self.steps) - 1
            chosen = f"median of {count} after the first" if count else "the only one"
            lines[0] += f", a step {duration(self.step_seconds)} ({chosen})"
        lines.append(f"{'device':<12}{'busy':>18}{'copying':>18}{'waiting':>18}{'kernels':>9}"
                     f"{'copies':>8}")  # fmt: skip
        for share in self.shares:
            cells = "".join(
                f"{duration(part) + _percent(part, self.seconds):>18}"
                for part in (share.busy, share.copying, share.waiting)
            )
            lines.append(f"{share.device:<12}{cells}{share.kernels:>9}{share.copies:>8}")
        if self.path:
            lines.append("critical path (estimate), by where its time goes:")
        lines += _path_lines(self.path, self.seconds)
        return "\n".join(lines)


def _path_lines(path: Sequence[Step], seconds: float) -> list[str]:
    """The path in a few lines: sums by kind and place, the largest first."""
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    longest: dict[tuple[str, str], tuple[float, str]] = {}
    for step in path:
        key = step.kind, step.place
        before, count = sums.get(key, (0.0, 0))
        sums[key] = before + step.seconds, count + step.count
        longest[key] = max(longest.get(key, (0.0, "")), (step.seconds, step.op))
    lines = []
    for (kind, place), (total, count) in sorted(sums.items(), key=lambda item: -item[1][0]):
        what = {"launch": "launching, ", "kernel": "", "copy": "", "collective": ""}[kind]
        most = longest[kind, place][1]
        ops = f", most in {most}" if most else ""
        many = {"copy": "copies"}.get(kind, "")
        times = "" if kind == "launch" else f" ({plural(count, kind, many)}{ops})"
        where = place
        if kind == "kernel":
            where = visible_text(place.replace("device ", f"{DEVICE_TYPE}:"))
        lines.append(f"  {duration(total) + _percent(total, seconds):>18}  {what}{where}{times}")
    return lines


def _percent(part: float, whole: float) -> str:
    return f" ({part / whole:.0%})" if whole else ""


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us" if seconds else "0 s"


def shares_of(timelines: Timelines, count: int, end: float) -> list[Share]:
    """What each of `count` devices did until `end`."""
    return [_share(timelines, index, end) for index in range(count)]


def _share(timelines: Timelines, index: int, end: float) -> Share:
    spans = {
        id(span): span
        for (device, _), each in timelines.items()
        if device == index
        for span in each
    }.values()
    kernels = [span for span in spans if span.kind == "kernel"]
    moving = [span for span in spans if span.kind != "kernel"]
    busy = covered(kernels)
    taken = covered(spans)
    device = visible_text(f"{DEVICE_TYPE}:{index}")
    return Share(device, busy, taken - busy, end - taken, len(kernels), len(moving))


def covered(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of the spans runs."""
    total, until = 0.0, 0.0
    for begin, end in sorted((span.begin, span.end) for span in spans):
        total += max(end - max(begin, until), 0.0)
        until = max(until, end)
    return total
