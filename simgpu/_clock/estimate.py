"""`simgpu.clock`: estimate how long the block would take on real GPUs, and where its time goes.

`Summary` has the busy, waiting and copying time of each device, and the critical path: the chain
of work that decides when the end comes.
"""

from __future__ import annotations

import itertools
import statistics
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from simgpu._clock.machine import Machine
from simgpu._clock.timelines import Line, Span, Timelines, covered
from simgpu._clock.topology import check_amount, topology_of
from simgpu._config.gpus import GENERIC, Model, Names, models, models_of
from simgpu._core import clock as runtime_clock
from simgpu._core import hooks, world
from simgpu._util.naming import DEVICE_TYPE, plural, visible_text
from simgpu.errors import NoDevicesError

HOST_COST = 5e-6  # seconds of the host for one launch
LAUNCH_GAP = 2e-6  # seconds between two kernels of a stream

_one_at_a_time = threading.Lock()


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


def _joined(steps: Iterable[Step]) -> Iterator[Step]:
    """Consecutive steps of one kind in one place as one, which goes by the longest of them."""
    for (kind, place), each in itertools.groupby(steps, key=lambda step: (step.kind, step.place)):
        joined = list(each)
        longest = max(joined, key=lambda step: step.seconds)
        yield Step(kind, place, joined[0].begin, joined[-1].end, len(joined), longest.op)


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

    def _total(self) -> str:
        total = f"estimate for {self.about}: {duration(self.seconds)}"
        if self.step_seconds is not None:
            count = len(self.steps) - 1
            chosen = f"median of {count} after the first" if count else "the only one"
            total += f", a step {duration(self.step_seconds)} ({chosen})"
        return total

    def in_a_line(self) -> str:
        """The estimate, the shares of each device that did something, and what takes longest."""
        shares = [
            f"; {share.device} busy{_percent(share.busy, self.seconds)}, "
            f"copying{_percent(share.copying, self.seconds)}, "
            f"waiting{_percent(share.waiting, self.seconds)}"
            for share in self.shares
            if share.kernels or share.copies
        ]
        longest = " ".join(next(_path_lines(self.path, self.seconds), "nothing").split())
        return "".join([self._total(), *shares, f"; longest part: {longest}"])

    def __str__(self) -> str:
        lines = [self._total()]
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


def _path_lines(path: Sequence[Step], seconds: float) -> Iterator[str]:
    """The path in a few lines: sums by kind and place, the largest first."""
    groups: dict[tuple[str, str], list[Step]] = {}
    for step in path:
        groups.setdefault((step.kind, step.place), []).append(step)
    totals = {key: sum(step.seconds for step in steps) for key, steps in groups.items()}
    for (kind, place), total in sorted(totals.items(), key=lambda item: -item[1]):
        steps = groups[kind, place]
        _, most = max((step.seconds, step.op) for step in steps)
        count = plural(sum(step.count for step in steps), kind, "copies" if kind == "copy" else "")
        what, times = (
            ("launching, ", "") if kind == "launch" else ("", f" ({count}, most in {most})")
        )
        if kind == "kernel":
            place = visible_text(place.replace("device ", f"{DEVICE_TYPE}:"))
        yield f"  {duration(total) + _percent(total, seconds):>18}  {what}{place}{times}"


def _percent(part: float, whole: float) -> str:
    return f" ({part / whole:.0%})" if whole else ""


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us" if seconds else "0 s"


def _share(timelines: Timelines, index: int, end: float) -> Share:
    """What a device did until `end`."""
    spans = {
        id(span): span
        for (device, _), each in timelines.items()
        if device == index
        for span in each
    }.values()
    kernels = [span for span in spans if span.kind == "kernel"]
    busy, taken = covered(kernels), covered(spans)
    device, moving = visible_text(f"{DEVICE_TYPE}:{index}"), len(spans) - len(kernels)
    return Share(device, busy, taken - busy, end - taken, len(kernels), moving)


class Estimate:
    """The estimated time of a program so far; made by `clock`.

    All times are seconds since the beginning of the block.
    """

    def __init__(self, machine: Machine, about: str) -> None:
        self._machine, self._about = machine, about
        self._steps: dict[int | None, list[float]] = {}

    @property
    def now(self) -> float:
        """The time of the calling thread, which may be ahead of the devices or behind them."""
        return self._machine.now()

    @property
    def end(self) -> float:
        """When all work so far is done, on all devices and on the host."""
        return self._machine.end

    @property
    def timelines(self) -> Timelines:
        """For each (device, stream) the kernels and copies that it ran, with begin and end."""
        return self._machine.timelines

    @property
    def steps(self) -> list[float]:
        """How long each step took, from one `optimizer.step()` to the next (of rank 0)."""
        ends = self._steps.get(None) or self._steps.get(0) or []
        return [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]

    def critical_path(self) -> list[Step]:
        """The chain of kernels, copies and launches that decides when the end comes."""
        machine = self._machine
        end = machine.end
        return critical_path(machine.timelines, machine.hosts.last(), end)

    def summary(self) -> Summary:
        """Where the time goes, per device and along the critical path."""
        end = self.end
        devices = range(len(self._machine.durations))
        shares = [_share(self.timelines, index, end) for index in devices]
        return Summary(end, shares, self.critical_path(), self.steps, self._about)

    def __str__(self) -> str:
        return str(self.summary())

    def _stepped(self, *_: Any) -> None:
        """An optimizer has stepped: a step ends when its work does."""
        ends = self._steps.setdefault(world.rank_number(), [])
        machine = self._machine
        ends.append(
            machine.end if world.rank_number() is None else machine.end_on(world.current_device())
        )


@contextmanager
def clock(
    model: Names | Model = None,
    topology: str | Iterable[Any] = "pcie",
    *,
    host_cost: float = HOST_COST,
    launch_gap: float = LAUNCH_GAP,
) -> Iterator[Estimate]:
    """Estimate the time on real GPUs within the block, with the same result in every run.

    Programs compute their normal results. A kernel takes the longer of two times, and a gap: its
    FLOPs at three quarters of the peak rate of its dtype, or its bytes at the memory bandwidth.
    Copies occupy links and queue there. Streams, events and the host wait for each other in
    estimated time, which events and `simgpu.trace()` show.

    Args:
        model: which GPU each device is, such as "A100"; a list gives one per device. By default the
            models of `simgpu.devices(model=...)`.
        topology: "pcie", "nvlink", "dgx-a100", two machines of eight as "2x8"; or a list of
            `simgpu.Link` or tuples (end, end, bandwidth, latency), whose ends are devices, "host"
            and names of switches.
        host_cost: seconds of the host for each launch.
        launch_gap: seconds between two kernels of a stream.

    Yields an `Estimate`. Raises NoDevicesError outside `simgpu.devices`. Raises ValueError for a
    model or a topology that is unknown or does not fit the devices, and if a clock is active
    already; TypeError for an argument of another type.
    """
    if not world.device_count():
        raise NoDevicesError("simgpu.clock needs simulated devices: enter simgpu.devices before it")
    check_amount("host_cost", host_cost, "seconds")
    check_amount("launch_gap", launch_gap, "seconds")
    chosen = _models(model)
    joined = topology_of(topology, chosen)
    machine = Machine(chosen, joined, host_cost, launch_gap)
    counted = Counter(each.key for each in chosen)
    names = ", ".join(f"{count} x {key}" for key, count in counted.items())
    estimate = Estimate(machine, f"{names}, {joined.name}")
    if not _one_at_a_time.acquire(blocking=False):
        raise ValueError("a simgpu.clock is in force already: leave its block first")
    with ExitStack() as ends:
        ends.callback(_one_at_a_time.release)
        for device in world.active_devices:  # by another clock
            device.busy_until.clear()
            ends.callback(device.busy_until.clear)
        ends.enter_context(runtime_clock.use(machine))
        hooks.add(machine)
        ends.callback(hooks.remove, machine)
        hook = register_optimizer_step_post_hook(estimate._stepped)
        ends.callback(hook.remove)
        yield estimate


def _models(names: Names | Model) -> list[Model]:
    count = world.device_count()
    if isinstance(names, Model):  # one that the list of models does not have
        return [names] * count
    if names is not None:
        return models_of(count, names)
    own = [device.model for device in world.active_devices]
    if GENERIC in own:
        raise ValueError(
            "simgpu.clock needs to know which GPU the devices are: name one of "
            f"{', '.join(models())} to it or to simgpu.devices(model=...)"
        )
    return own
