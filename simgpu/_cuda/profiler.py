"""torch.profiler under `as_cuda`: kernels, copies and memory of devices beside the host's events.

Kineto, which records a profile, has no device events in a build of PyTorch for the CPU. So each
launch is marked in its profile by an event with a number, as a GPU has one of cudaLaunchKernel.
Once Kineto is done, the marks say which operator launched what.

Device events have the times of `simgpu.clock`. Without one they are as long as the host took, and
tables and traces say "host".
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.autograd.profiler
from torch._C._autograd import DeviceType
from torch._C._profiler import ProfilerActivity
from torch._C._profiler import _RecordFunctionFast as Mark

from simgpu._core import clock, hooks, world
from simgpu._core.hooks import Instrument, Launch, Record
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Table

PATCHES = Table()
_Profile: Any = torch.autograd.profiler.profile
FunctionEvent: Any = torch.autograd.profiler.FunctionEvent
CUDA = "cuda"
_MEMORY = "[memory]"
_numbers = itertools.count(1)


class _OnHost(str):
    """The name cuda, in a profile whose device events are as long as the host took."""

    def upper(self) -> str:
        """As the columns of a table have it."""
        return "CUDA (host)"


class _Seen(Instrument):
    """What ran while a profile was recorded, by the numbers of its marks."""

    def __init__(self, memory: bool) -> None:
        self._memory = memory
        self._last: dict[int, int] = {}  # the number of what runs, by thread

    def before_launch(self, launch: Launch) -> None:
        if launch.kind != "memory":
            number = self._last[threading.get_ident()] = next(_numbers)
            name = "cudaMemcpyAsync" if launch.kind == "copy" else "cudaLaunchKernel"
            with Mark(f"{name}#{number}"):  # over before the kernel runs, which may fail
                pass

    def after_launch(self, launch: Launch, record: Record) -> None:
        number = self._last.pop(threading.get_ident(), None)
        if number is not None and launch.kind != "memory":
            self.launches[number] = record

    def allocated(self, device: torch.device, block: Any, storage: Any, allocation: object) -> None:
        self._note_bytes(block, 1)

    def freed(self, device: torch.device, block: Any) -> None:
        self._note_bytes(block, -1)

    def _note_bytes(self, block: Any, sign: int) -> None:
        if self._memory and block.nbytes:
            number = next(_numbers)
            with Mark(f"{_MEMORY}#{number}"):
                self.bytes[number] = sign * block.nbytes

    def begin(self) -> None:
        """From now on all is seen, and nothing of an earlier cycle; times count from here."""
        self.launches: dict[int, Record] = {}
        self.bytes: dict[int, int] = {}  # that a device takes, or gives back
        self.start, self.estimated = clock.current.now(), clock.current.follows_devices
        hooks.add(self)


def _number(name: str) -> int:
    """The number of a mark by its name, 0 of another event."""
    kind, _, number = name.rpartition("#")
    is_mark = kind in (_MEMORY, "cudaLaunchKernel", "cudaMemcpyAsync")
    return int(number) if is_mark and number.isdecimal() else 0


def _name(record: Record) -> str:
    """What a profile calls a kernel or copy; copies as Kineto does."""
    if record.kind != "copy":
        return record.op
    ends = ["H" if end.type == "cpu" else "D" for end in (record.source, record.target)]
    if ends == ["D", "D"] and record.source != record.target:
        return "Memcpy PtoP (Device -> Device)"
    kinds = {"H": "Pageable", "D": "Device"}
    return f"Memcpy {ends[0]}to{ends[1]} ({kinds[ends[0]]} -> {kinds[ends[1]]})"


class DeviceProfile(_Profile):  # type: ignore[misc]
    """A profile with the events of simulated devices; made of PyTorch's own by `_take_over`."""

    _seen: _Seen
    _has_host: bool
    use_device: str | None

    def _start_trace(self) -> None:
        super()._start_trace()
        self._seen.begin()

    def __exit__(self, *error: Any) -> Any:
        hooks.remove(self._seen)
        device, self.use_device = self.use_device, CUDA if world.device_count() else None
        try:
            return super().__exit__(*error)
        finally:
            self.use_device = device if self._seen.estimated else _OnHost(CUDA)

    def _parse_kineto_results(self, result: Any, *args: Any, **kwargs: Any) -> list[Any]:
        events = super()._parse_kineto_results(result, *args, **kwargs)
        found = list(self._with_devices(events))
        if not self._has_host:
            found = [event for event in found if event.device_type == DeviceType.CUDA]
        return sorted(found, key=lambda event: (event.time_range.start, -event.time_range.end))

    def _with_devices(self, events: Iterable[Any]) -> Iterator[Any]:
        """The events of the host and those of devices, without the numbers of the marks."""
        open_events: dict[int, list[Any]] = {}
        left = dict(self._seen.launches)
        for event in events:
            outer = open_events.setdefault(event.thread, [])
            while outer and outer[-1].time_range.end < event.time_range.end:
                outer.pop()
            number = _number(event.name)
            if number in self._seen.bytes:
                for each in outer or [event]:
                    each.device_memory_usage += self._seen.bytes[number]
                if outer:
                    continue
            event.name = event.trace_name = event.name.partition("#")[0] if number else event.name
            record = left.pop(number, None)
            if record is not None:
                at = None if self._seen.estimated else event.time_range.start
                kernel = self._device_event(number, record, at)
                (outer[-1] if outer else event).append_kernel(
                    kernel.name, kernel.device_index, kernel.time_range.elapsed_us()
                )
                yield kernel
            outer.append(event)
            yield event
        for number, record in left.items():  # of threads that Kineto does not see
            yield self._device_event(number, record, None)

    def _device_event(self, number: int, record: Record, at: float | None) -> Any:
        """The event of a kernel or copy that began at `at`, in microseconds; None: by the clock."""
        begin = (record.begin - self._seen.start) * 1e6 if at is None else at
        end = begin + (record.end - record.begin) * 1e6
        return FunctionEvent(
            number,
            _name(record),
            record.stream,
            begin,
            end,
            input_shapes=[],
            stack=[],
            device_type=DeviceType.CUDA,
            device_index=record.device.index,
            device_resource_id=record.stream,
            use_device=self.use_device,
            metadata_json=json.dumps(self._facts(number, record)),
        )

    def _facts(self, number: int, record: Record) -> dict[str, Any]:
        """The arguments of a device event, by Kineto's names."""
        time = "estimated by simgpu.clock" if self._seen.estimated else "as long as the host took"
        where = {"device": record.device.index, "stream": record.stream, "correlation": number}
        return {**where, "bytes": record.nbytes, "time": time}

    def export_chrome_trace(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Write the trace as PyTorch does, and a process for each device: its rows are streams."""
        super().export_chrome_trace(path, *args, **kwargs)
        with open(path, encoding="utf-8") as file:
            trace = json.load(file)
        result: Any = self.kineto_results
        start = (result.trace_start_ns() - trace.get("baseTimeNanoseconds", 0)) / 1e3
        trace["traceEvents"] = list(self._rows(trace["traceEvents"], start))
        with open(path, "w", encoding="utf-8") as file:
            json.dump(trace, file)

    def _rows(self, events: list[dict[str, Any]], start: float) -> Iterator[dict[str, Any]]:
        left, devices = dict(self._seen.launches), dict[int, None]()
        for event in events:
            number = _number(event.get("name", ""))
            if number:
                if number in self._seen.bytes:
                    continue
                event |= {"name": event["name"].partition("#")[0], "cat": "cuda_runtime"}
                event["args"] = {**event.get("args", {}), "correlation": number}
            if self._has_host or event.get("ph") == "M":
                yield event
            record = left.pop(number, None)
            if record is not None:
                at = None if self._seen.estimated else event["ts"] - start
                row = {"pid": record.device.index, "tid": record.stream}
                arrow = {"id": number, "cat": "ac2g", "name": "ac2g"}
                device = self._row(number, record, at, start)
                yield device
                yield {**arrow, "ph": "s", **{key: event[key] for key in ("pid", "tid", "ts")}}
                yield {**arrow, "ph": "f", "bp": "e", **row, "ts": device["ts"]}
                devices[record.device.index] = None
        for number, record in left.items():
            yield self._row(number, record, None, start)
            devices[record.device.index] = None
        for index in devices:
            title = {"ph": "M", "pid": index, "tid": 0}
            yield {**title, "name": "process_name", "args": {"name": f"{CUDA}:{index}"}}
            yield {**title, "name": "process_labels", "args": {"labels": f"GPU {index}"}}
        for index, stream in {(r.device.index, r.stream) for r in self._seen.launches.values()}:
            name = {"name": f"stream {stream}"}
            yield {"ph": "M", "pid": index, "tid": stream, "name": "thread_name", "args": name}

    def _row(self, number: int, record: Record, at: float | None, start: float) -> dict[str, Any]:
        event = self._device_event(number, record, at)
        return {
            "ph": "X",
            "cat": "gpu_memcpy" if record.kind == "copy" else "kernel",
            "name": event.name,
            "pid": record.device.index,
            "tid": record.stream,
            "ts": start + event.time_range.start,
            "dur": event.time_range.elapsed_us(),
            "args": self._facts(number, record),
        }


@PATCHES.around(
    "torch.autograd.profiler.profile.__init__",
    why="CUDA's times are requested, which Kineto has not in a build without CUDA",
)
def _take_over(
    stock: Callable[..., Any],
    self: Any,
    enabled: bool = True,
    *,
    use_cuda: bool = False,
    use_device: str | None = None,
    use_cpu: bool = True,
    **kwargs: Any,
) -> None:
    """`torch.autograd.profiler.profile.__init__`: a profile of the host, with more to come."""
    device = use_cuda or use_device in (CUDA, DEVICE_TYPE)
    if not (enabled and device and type(self) is _Profile):
        kwargs |= {"use_cuda": use_cuda, "use_device": use_device, "use_cpu": use_cpu}
        stock(self, enabled, **kwargs)
        return
    stock(self, **kwargs)
    self.__class__ = DeviceProfile
    self.use_device = CUDA
    self._seen = _Seen(self.profile_memory)
    self._has_host = use_cpu


@PATCHES.around(
    "torch.autograd._supported_activities",
    why="programs ask whether a profile can have device events, and it can",
)
def _with_cuda(stock: Callable[[], set[Any]]) -> set[Any]:
    return {*stock(), ProfilerActivity.CUDA}
