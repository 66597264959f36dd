"""The simulated machine in time: what each launch takes, on which stream, after what.

An instrument, which is asked at each launch and each wait, and the clock that gives the time to all
who ask (`simgpu._core.clock`). Until when a stream is busy is kept where `Stream` and `Event`
look for it (`Device.busy_until`), so that they wait, query and measure by it unchanged.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Sequence
from typing import Any

import torch

from simgpu._clock import durations
from simgpu._clock.durations import Durations, nbytes
from simgpu._clock.timelines import Hosts, Line, Span, Stream, Timelines, covered, is_in_backward
from simgpu._clock.topology import Place, Route, Topology
from simgpu._config.gpus import Model
from simgpu._core import streams, world
from simgpu._core.clock import Clock
from simgpu._core.hooks import Awaited, Collective, Instrument, Launch, Node
from simgpu._core.operators import waits_for_values
from simgpu._explore.faults.faults import slow_factor
from simgpu._util.naming import DEVICE_TYPE, visible_text

# The collectives of all process groups in time: each begins when its last rank has come.
#
# Where the ranks are threads of this process (`simgpu.ranks`), the arrivals of all are known. A
# rank that is a process of its own knows but itself, and takes it that the others come as it does.


class _GroupCall:
    """One collective: who has come when, and what came before it in the group."""

    def __init__(self, op: str, about: Collective, previous: _GroupCall | None) -> None:
        self.op, self.about, self.previous = op, about, previous
        self.size = len(about.ranks) if about.peer is None else 2
        self._awaited = 1 if world.rank_number() is None else self.size
        self.arrivals: dict[int, float] = {}  # of each rank
        self.devices: dict[int, int] = {}
        self.nbytes = 0
        self.times: tuple[float, float] | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all ranks have come."""
        return len(self.arrivals) >= self._awaited


class Groups:
    """The collectives of a program, each on a stream of its group as with NCCL."""

    def __init__(self, timelines: Timelines, topology: Topology) -> None:
        self._timelines, self._topology = timelines, topology
        self._calls: dict[object, _GroupCall] = {}
        self._last: dict[str, _GroupCall] = {}

    def arrive(self, about: Collective, op: str, device: int, moment: float) -> None:
        """The stream of a rank has come to a collective."""
        call = self._calls.get(_key(about))
        if call is None:
            previous = None if about.peer is not None else self._last.get(about.group)
            call = _GroupCall(op.removeprefix("c10d."), about, previous)
            self._calls[_key(about)] = call
            if about.peer is None:
                self._last[about.group] = call
        call.arrivals[about.rank] = moment
        call.devices[about.rank] = device
        call.nbytes = max(call.nbytes, about.nbytes)

    def times(self, about: Collective) -> tuple[float, float] | None:
        """When it begins and ends; None where ranks are missing."""
        call = self._calls.get(_key(about))
        return None if call is None or not call.is_complete else self._times(call)

    def end_on(self, device: int) -> float:
        """When the last collective ends on a device, of those that all ranks have come to."""
        ends = (
            self._times(call)[1]
            for call in self._calls.values()
            if device in call.devices.values() and call.is_complete
        )
        return max(ends, default=0.0)

    def _times(self, call: _GroupCall) -> tuple[float, float]:
        if call.times is None:
            before = 0.0 if call.previous is None else self._times(call.previous)[1]
            devices = [call.devices[rank] for rank in sorted(call.devices)]
            arrived = max(call.arrivals.values())
            begin = max(before, arrived)
            routes = self._routes(devices, call.size)
            seconds = durations.collective_seconds(call.op, call.size, call.nbytes, routes)
            end = begin + seconds * max(map(slow_factor, devices))
            call.times, call.previous = (begin, end), None
            on = tuple((device, f"nccl {call.about.group}") for device in devices)
            span = Span(call.op, "collective", on, begin, end, arrived, call.nbytes)
            self._timelines.add(span)
        return call.times

    def _routes(self, devices: list[int], members: int) -> list[Route]:
        """The ways around the ring."""
        ring = devices if len(devices) == members else list(range(members))
        pairs = zip(ring, [*ring[1:], ring[0]], strict=True)
        routes = [self._topology.route(*pair) for pair in pairs if pair[0] != pair[1]]
        return [route for route in routes if route is not None]


def _key(about: Collective) -> object:
    """What is equal for all ranks of one collective."""
    if about.peer is None:
        return about.group, about.number
    pair = (about.rank, about.peer) if about.sends else (about.peer, about.rank)
    return about.group, pair, about.tag, about.number


# When the nodes of a graph may begin that is replayed (torch.cuda.CUDAGraph).
#
# The host launches a graph once. From then on its kernels and copies wait only for each other, as
# their streams did in the capture: those of one branch run one after the other, branches beside
# each other.


class _Replay:
    """One replay under way: when it began, and when each of its nodes has ended."""

    def __init__(self, graph: object, begin: float) -> None:
        self.graph = graph
        self._begin = begin
        self.last = -1
        self._ends: dict[int, float] = {}

    def ready(self, node: Node) -> float:
        """When all that `node` waits for has ended."""
        ends = (self._ends.get(number, self._begin) for number in node.after)
        return max(ends, default=self._begin)

    def ended(self, node: Node, moment: float) -> None:
        """What comes after `node` may begin at this moment."""
        self._ends[node.number] = moment
        self.last = node.number


POLL = 1e-6  # what asking a stream or an event takes of the host's time


class Machine(Instrument, Clock):
    """Devices of these models, joined by a topology, and a host that launches for them."""

    follows_devices = True

    def __init__(
        self, models: Sequence[Model], topology: Topology, host_cost: float, launch_gap: float
    ) -> None:
        self.topology = topology
        self.durations = [Durations(model) for model in models]
        self.gap = launch_gap
        self.hosts = Hosts(host_cost, self._rejoined)
        self.timelines = Timelines()
        self.groups = Groups(self.timelines, topology)
        self._replays: dict[int, _Replay] = {}  # the latest of each thread, which launches it
        self._lock = _thread.allocate_lock()
        # What each rank has begun in a backward pass, and on which stream.
        self._unawaited: dict[int | None, list[tuple[Collective, Stream]]] = {}

    # What a clock is asked.

    def now(self) -> float:
        """Seconds since the beginning, by the host's line of the calling thread."""
        return self.hosts.line().time

    def wait_until(self, moment: float) -> None:
        self.hosts.line().wait(moment)

    def passed(self, moment: float) -> bool:
        line = self.hosts.line()
        line.time += POLL
        return moment <= line.time

    @property
    def end(self) -> float:
        """When everything that was launched has run, and the host has come to its end."""
        return max(self.hosts.last().time, self.timelines.end())

    def end_on(self, device: int) -> float:
        """When the calling thread and this device have come to their end."""
        return max(self.hosts.line().time, self.timelines.end(device))

    def utilization(self, device: int) -> int:
        end = self.end
        since = max(0.0, end - 1)
        lines = [spans for (at, _), spans in [*self.timelines.items()] if at == device]
        kernels = [span for spans in lines for span in spans if span.kind == "kernel"]
        return round(100 * covered(kernels, since) / (end - since)) if end else 0

    # What happens on the devices.

    def before_launch(self, launch: Launch) -> None:
        about = launch.about
        key = launch.device.index, launch.stream
        if isinstance(about, Collective) and self._is_here(key[0]) and key not in streams.captured:
            with self._lock:
                moment = max(self.hosts.launch(key[0]).time, self._free_from([key]))
                self.groups.arrive(about, launch.op, key[0], moment)
                if is_in_backward():
                    self._unawaited.setdefault(world.rank_number(), []).append((about, key))

    def times_of(self, launch: Launch, result: Any, begin: float) -> tuple[float, float]:
        index, about = launch.device.index, launch.about
        now = self.hosts.line().time
        if not self._is_here(index):
            return now, now
        if (index, launch.stream) in streams.captured:  # recorded, and run by replays
            now = now if launch.kind == "memory" else self.hosts.launch(index).time
            return now, now
        if isinstance(about, Collective):
            return self.groups.times(about) or (now, now)
        with self._lock:
            span = self._copy(launch, result) if launch.kind == "copy" else None
            span = span or self._kernel(launch, result)
        return span.begin, span.end

    def stream_waits(self, stream: torch.Stream | None, awaited: Awaited) -> None:
        times = self.groups.times(awaited) if isinstance(awaited, Collective) else None
        if times is not None and stream is not None:
            self._stay_busy(streams.key_of(stream), times[1])

    def _rejoined(self, rank: int | None) -> None:
        """A backward pass has ended: DistributedDataParallel waits for its collectives there.

        It does so by futures of C++, which are not observable.
        """
        for about, stream in self._unawaited.pop(rank, ()):
            times = self.groups.times(about)
            if times is not None:
                self._stay_busy(stream, times[1])

    def host_synchronizes(self, awaited: torch.device | torch.Stream | torch.Event) -> None:
        if isinstance(awaited, torch.device):
            self.hosts.line().wait(self.groups.end_on(awaited.index))

    def _kernel(self, launch: Launch, result: Any) -> Span:
        index, op = launch.device.index, launch.kernel.op
        stream: Stream = index, launch.stream
        if launch.kind == "memory":
            now = self.hosts.line(index).time
            return Span(launch.op, "kernel", (stream,), now, now, now)
        line, begin, on = self._queue(launch, [stream])
        seconds = self.gap + self.durations[index].of(op, launch.args, launch.kwargs, result)
        end = begin + seconds * slow_factor(index)
        span = self._add(Span(launch.op, "kernel", on, begin, end, line.time, line=line), launch)
        if waits_for_values(op, launch.args, launch.kwargs):
            line.wait(end)
        return span

    def _copy(self, launch: Launch, result: Any) -> Span | None:
        """A copy over links; None where it is one within a device, as far as links go."""
        index = launch.device.index
        source, target = self._place(launch.source, index), self._place(launch.target, index)
        route = self.topology.route(source, target)
        if route is None:  # to or from a device that has come since
            return None
        occupied: list[Stream] = [(index, launch.stream)]
        if isinstance(source, int) and isinstance(target, int):
            occupied.append((target, streams.current_stream_id(target)))
        line, ready, on = self._queue(launch, occupied)
        # The result of item() is a number.
        moved = nbytes(result if isinstance(result, torch.Tensor) else launch.args[0])
        seconds = route.seconds(moved) * slow_factor(index)
        begin, end = self.timelines.take_links(route, ready, seconds)
        way = visible_text(f"{_named(launch.source)} to {_named(launch.target)}")
        about = (launch.op, "copy", on, begin, end, line.time, moved, way, line)
        span = self._add(Span(*about), launch)
        if len(occupied) > 1:
            self.hosts.hand_over(index, target if isinstance(target, int) else index)
        elif _is_staged(launch, result):
            line.wait(end)
        return span

    def _queue(
        self, launch: Launch, occupied: Sequence[Stream]
    ) -> tuple[Line, float, tuple[Stream, ...]]:
        """The host's line after a launch, when these streams are ready for it, and where it runs.

        A graph is one launch, and each of its nodes runs when those that it waits for have ended.
        """
        node, index = _node(launch), launch.device.index
        if node is None:
            line = self.hosts.launch(index)
            return line, max(line.time, self._free_from(occupied)), tuple(occupied)
        thread = threading.get_ident()
        replay = self._replays.get(thread)
        if replay is None or replay.graph is not node.graph or node.number <= replay.last:
            moment = max(self.hosts.launch(index).time, self._free_from(occupied))
            replay = self._replays[thread] = _Replay(node.graph, moment)
        own, *others = occupied
        ready = max(replay.ready(node), self._free_from(others))
        if node.branch:
            own = index, f"branch {node.branch} of a graph"
        return self.hosts.line(index), ready, (own, *others)

    def _add(self, span: Span, launch: Launch) -> Span:
        self.timelines.add(span)
        for stream in span.streams:
            self._stay_busy(stream, span.end)
        node = _node(launch)
        if node is not None:  # the stream of a replay is busy until all has ended
            self._replays[threading.get_ident()].ended(node, span.end)
            self._stay_busy((launch.device.index, launch.stream), span.end)
        return span

    # Where things are.

    def _free_from(self, occupied: Sequence[Stream]) -> float:
        """When the last of these streams is free: work, waits and sleep count."""
        busy = (
            world.active_devices[index].busy_until.get(number, 0.0)  # type: ignore[arg-type]
            for index, number in occupied
            if self._is_here(index)
        )
        return max(busy, default=0.0)

    def _stay_busy(self, stream: Stream, moment: float) -> None:
        index, number = stream
        if self._is_here(index):
            busy_until: dict[Any, float] = world.active_devices[index].busy_until
            busy_until[number] = max(busy_until.get(number, 0.0), moment)

    def _is_here(self, index: int) -> bool:
        return index < min(len(world.active_devices), len(self.durations))

    def _place(self, device: torch.device, index: int) -> Place:
        return self.topology.host_of(index) if device.type == "cpu" else device.index


def _node(launch: Launch) -> Node | None:
    return launch.about if isinstance(launch.about, Node) else None


def _named(device: torch.device) -> str:
    return "host" if device.type == "cpu" else f"{DEVICE_TYPE}:{device.index}"


def _is_staged(launch: Launch, result: Any) -> bool:
    """Whether the host's memory is pageable: CUDA copies it by way of a buffer, and waits for that.

    A tensor that `to("cpu", non_blocking=True)` makes is in pinned memory.
    """
    into = launch.kernel.name == "copy_"
    if launch.source.type != "cpu" and not into:
        return False
    tensor = launch.args[into and launch.source.type == "cpu"]
    return isinstance(tensor, torch.Tensor) and tensor.is_cpu and not tensor.is_pinned()
