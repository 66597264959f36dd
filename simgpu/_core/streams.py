"""Streams and events of simulated devices.

By itself a simulated device does its work while it is being asked for, so a stream has nothing to
wait for but sleep (below), which programs put there to see who waits. What remains of it is
its identity, the device it belongs to, and which stream is current in a thread. An executor
(`hooks`) may queue work and run it later, and a clock (`clock`) may give it a duration: what
waits for a stream asks both. Shapes follow `torch.cuda.Stream`.
"""

from __future__ import annotations

import itertools
import operator
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from simgpu._core import clock, world
from simgpu._core import hooks as core_hooks
from simgpu._core.hooks import hooks
from simgpu._util import thread_rows
from simgpu._util.naming import DEVICE_TYPE, PRIVATE_USE_1, visible_text
from simgpu._util.thread_rows import CURRENT_DEVICE, LOG, RECORDED, STREAMS, USES
from simgpu.errors import CaptureError, DeviceMismatchError, NotReadyError

Key = tuple[int, int]  # of a stream: the index of its device, and its number

# By stream that is being captured into a graph, its `captures.Capture`.
captured: dict[Key, Any] = {}

_POOLED = 32  # streams that a device has of each priority
_FIRST_PRIORITY = -3  # the one that goes first

# How many were asked for so far, by the index of the device and the priority.
_asked: dict[tuple[int, int], Iterator[int]] = {}


def _pooled_number(index: int, priority: int) -> int:
    """The number of the next stream of a device and priority: of 32 in turn (CUDAStream.cpp).

    A number holds which of them it is, the priority's place, and a bit that says so.
    """
    priority = max(_FIRST_PRIORITY, min(operator.index(priority), 0))
    count = next(_asked.setdefault((index, priority), itertools.count()))
    return count % _POOLED << 5 | 1 - priority << 1 | 1


class Stream(torch.Stream):
    """A queue of work on one simulated device (torch.cuda.Stream).

    Args: `device` as a torch.device, index or None for the current device; `priority` from -3,
    which would go first, to 0. It has no effect. Of each priority a device has 32 streams, which
    are handed out in turn: the 33rd is the first one again.
    """

    def __new__(
        cls,
        device: torch.device | str | int | None = None,
        priority: int = 0,
        *,
        stream_id: int | None = None,
        device_index: int | None = None,
        **_: Any,
    ) -> Stream:
        owner = world.device(world.resolve(device if device_index is None else device_index))
        number = _pooled_number(owner.index, priority) if stream_id is None else stream_id
        self: Stream = super().__new__(
            cls, stream_id=number, device_index=owner.index, device_type=PRIVATE_USE_1
        )
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        pass  # `__new__` has given C++ its values

    @property
    def priority(self) -> int:
        """From -3 to 0."""
        return 1 - (self.stream_id >> 1 & 15) if self.stream_id & 1 else 0

    @property
    def cuda_stream(self) -> int:
        """The stream where C takes a pointer; 0 for the default stream."""
        return handle_of(self.device_index, self.stream_id)

    @property
    def native_handle(self) -> int:
        """The same, by the name that it has for all kinds of devices."""
        return self.cuda_stream

    def wait_event(self, event: torch.Event) -> None:
        """Make later work wait for `event`."""
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Make later work wait for `stream`."""
        stay_busy(self, busy_until(stream.device_index, stream))
        for waits in hooks.stream_waits:
            waits(self, stream)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Mark this point of the queue."""
        event = torch.Event(device=DEVICE_TYPE) if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work asked for is done: always, unless it sleeps. Spoils a capture of it."""
        if captured and self.is_capturing():
            for waits in hooks.host_synchronizes:
                waits(self)  # no capture survives it
        return clock.current.passed(busy_until(self.device_index, self)) and core_hooks.is_done(
            self
        )

    def is_capturing(self) -> bool:
        """Whether its work is recorded in a graph, and not done."""
        return is_captured(self)

    def synchronize(self) -> None:
        """Wait until all work asked for is done."""
        clock.current.wait_until(busy_until(self.device_index, self))
        for waits in hooks.host_synchronizes:
            waits(self)

    def __enter__(self) -> Stream:
        make_current(self, self)
        return self

    def __exit__(self, *_: object) -> None:
        put_back(self)

    def __repr__(self) -> str:
        return visible_text(
            f"<torch.{DEVICE_TYPE}.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"
        )

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority; a lower number would go first."""
        return 0, _FIRST_PRIORITY


class _PerThread(threading.local):
    """The stream object that a thread has found or made current on each device last.

    Which stream is current, its number in `thread_rows` says: C++ makes streams current, too.
    And, by the id of a block that the thread is in, what each of its beginnings has to put back.
    """

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        # The device; and of the block's device its index, its stream's number and that stream.
        self.outer: dict[int, list[tuple[int, int, int, Stream | None]]] = {}


_per_thread = _PerThread()


def handle_of(device_index: int, stream_id: int) -> int:
    """The number of a stream among those of all devices; 0 for the default streams."""
    return stream_id and (device_index + 1) << 32 | stream_id


def busy_until(index: int, stream: torch.Stream | None) -> float:
    """Until when `stream`, or the current one, of device `index` sleeps; 0 if it does not."""
    moments = world.device(index).busy_until
    if not moments:
        return 0.0
    return moments.get(current_stream_id(index) if stream is None else stream.stream_id, 0.0)


def stay_busy(stream: torch.Stream, moment: float) -> None:
    """Make `stream` sleep until `moment`, unless that is over.

    By a clock of each thread's own it may be over for the calling thread, and not for another.
    """
    if moment > clock.current.now() or clock.current.follows_devices:
        world.device(stream.device_index).sleep_until(moment, stream.stream_id)


def key_of(stream: torch.Stream) -> Key:
    """The key of a stream, the same for each of its objects."""
    return stream.device_index, stream.stream_id


def is_captured(stream: torch.Stream) -> bool:
    """Whether the work of `stream` is recorded in a graph."""
    return key_of(stream) in captured


def current_stream_id(index: int) -> int:
    """Number of the calling thread's current stream on device `index`; 0 is the default stream."""
    return thread_rows.per_thread.row[STREAMS + index]


def current_stream(device: torch.device | str | int | None = None) -> Stream:
    """The calling thread's current stream on `device` (default: the current device)."""
    index = world.resolve(device)
    number = current_stream_id(index)
    stream = _per_thread.streams.get(index)
    if index >= len(world.active_devices):
        world.device(index)  # raises
    if stream is not None and stream.stream_id == number:
        return stream
    stream = _per_thread.streams[index] = Stream(index, stream_id=number)
    return stream


def default_stream(device: torch.device | str | int | None = None) -> Stream:
    """The stream that is current on `device` unless another is set."""
    return Stream(world.resolve(device), stream_id=0)


def set_stream(stream: torch.Stream | None) -> None:
    """Make `stream` current on its device, in the calling thread; None changes nothing."""
    if stream is None:
        return
    if not isinstance(stream, Stream):
        if stream.device.type != DEVICE_TYPE:
            raise ValueError(
                f"expected a stream of a {DEVICE_TYPE} device, got one of {stream.device}"
            )
        stream = Stream(stream.device_index, stream_id=stream.stream_id)
    _per_thread.streams[stream.device_index] = stream
    thread_rows.per_thread.row[STREAMS + stream.device_index] = stream.stream_id


def make_current(block: object, stream: Stream) -> None:
    """Make `stream` and its device current in the calling thread, until `put_back(block)` there.

    One block may be entered by several threads at the same time, and again within itself.
    """
    index = stream.device_index
    if isinstance(stream, Stream):
        world.device(index)  # raises, before anything is changed
    row = thread_rows.per_thread.row
    outer = row[CURRENT_DEVICE], index, row[STREAMS + index], _per_thread.streams.get(index)
    set_stream(stream)
    row[CURRENT_DEVICE] = index
    _per_thread.outer.setdefault(id(block), []).append(outer)


def put_back(block: object) -> None:
    """End `block` in the calling thread; nothing is put back where another one has begun it."""
    kept = _per_thread.outer.get(id(block))
    if kept is None:
        return
    device, index, number, stream = kept.pop()
    if not kept:
        del _per_thread.outer[id(block)]
    if stream is not None:
        _per_thread.streams[index] = stream
    thread_rows.per_thread.row[STREAMS + index] = number
    world.set_current_device(device)


# Events of simulated devices: marks in their streams. Shapes follow `torch.cuda.Event`.

CAPTURED_EVENT = "operation not permitted on an event last recorded in a capturing stream"

_event_numbers = itertools.count(1)


class Event(torch.Event):
    """A mark in a stream (torch.cuda.Event); it is passed at once, unless the stream sleeps.

    With `external`, a captured stream records it, or waits for it, in each replay of the graph.
    """

    enable_timing: bool
    external: bool
    _unrecorded_device: torch.device | None = None  # what a generic torch.Event says
    _number: int
    _recorded_at: float | None
    _recorded_on: int | None
    _captured: bool

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Event:
        self: Event = super().__new__(cls, device=DEVICE_TYPE, enable_timing=enable_timing)
        self.enable_timing, self.external = enable_timing, external
        self._recorded_at = self._recorded_on = None
        self._number, self._captured = 0, False
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        """Nothing: an event is complete after __new__."""

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """The device of the first stream that it was recorded on; None before."""
        if self._recorded_on is None:
            return self._unrecorded_device
        return torch.device(DEVICE_TYPE, self._recorded_on)

    @property
    def cuda_event(self) -> int:
        """The event where C takes a pointer; 0 before it is recorded."""
        return self._number

    event_id = cuda_event

    def record(self, stream: torch.Stream | None = None) -> None:
        """Put the mark into `stream`, or into the current one.

        The first stream decides the event's device; raises DeviceMismatchError for another's.
        """
        if stream is None:
            world.initialize()
        on = current_stream() if stream is None else stream
        index = on.device_index
        if self._recorded_on not in (None, index):
            raise DeviceMismatchError(
                f"Event device {self._recorded_on} does not match recording stream's device "
                f"{index}."
            )
        self._recorded_on, self._number = index, self._number or next(_event_numbers)
        if self._is_node(on, records=True):
            return
        self._recorded_at = max(clock.current.now(), busy_until(index, on))
        self._captured = is_captured(on)
        for recorded in hooks.event_recorded:
            recorded(self, on)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Make `stream`, or the current one, wait for the mark; for none, if it was never set."""
        on = current_stream() if stream is None else stream
        if not self._number or self._is_node(on, records=False):
            return
        stay_busy(on, self._recorded_at or 0.0)
        for waits in hooks.stream_waits:
            waits(on, self)

    def _is_node(self, on: torch.Stream, records: bool) -> bool:
        """Whether this is done in the replays of a graph, which records it, and not now.

        What PyTorch asks is whether the device's current stream is captured, whichever `on` is.
        """
        if not (self.external and captured and is_captured(current_stream(on.device_index))):
            return False
        if not is_captured(on):
            raise CaptureError(
                f"{DEVICE_TYPE} error: invalid argument: the device's current stream is captured, "
                "and the one that has to record or wait for an event with external=True is not: "
                "make that one current"
            )
        captured[key_of(on)].add_event(self, on.device_index, records)
        return True

    def query(self) -> bool:
        """Whether the mark has been passed; true also of one that was never recorded."""
        self._refuse_captured()
        passed = self._recorded_at is None or clock.current.passed(self._recorded_at)
        return passed and core_hooks.is_done(self)

    def synchronize(self) -> None:
        """Wait until the mark has been passed."""
        self._refuse_captured()
        clock.current.wait_until(self._recorded_at or 0.0)
        for waits in hooks.host_synchronizes:
            waits(self)

    def _refuse_captured(self) -> None:
        """Raise CaptureError for a mark in a graph; its capture does not survive it."""
        if self._captured:
            for waits in hooks.host_synchronizes:
                waits(self)
            raise CaptureError(f"{DEVICE_TYPE} error: {CAPTURED_EVENT}")

    def elapsed_time(self, end_event: torch.Event) -> float:
        """Milliseconds between two recorded events made with `enable_timing`, by the clock.

        As on CUDA, events of different devices have none: DeviceMismatchError.
        """
        if not isinstance(end_event, Event):
            raise TypeError(f"end_event must be a simgpu Event, got {end_event!r}")
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._number and end_event._number):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        self._refuse_captured()
        end_event._refuse_captured()
        if self._recorded_at is None or end_event._recorded_at is None:
            raise CaptureError(
                f"{DEVICE_TYPE} error: invalid resource handle: an event has been recorded in the "
                "capture of a graph, and in no replay yet: replay the graph first"
            )
        if not (_is_over(self) and _is_over(end_event)):
            raise NotReadyError(
                f"{DEVICE_TYPE} error: device not ready: an event has not been passed yet: call "
                "end_event.synchronize() first"
            )
        if self._recorded_on != end_event._recorded_on:
            raise DeviceMismatchError(
                f"{DEVICE_TYPE} error: invalid resource handle: one event was recorded on device "
                f"{self._recorded_on} and the other on device {end_event._recorded_on}"
            )
        return (end_event._recorded_at - self._recorded_at) * 1e3

    def __repr__(self) -> str:
        recorded = "not recorded" if self._recorded_at is None else f"at {self._recorded_at:.6f} s"
        return visible_text(f"<torch.{DEVICE_TYPE}.Event {recorded}>")


def _is_over(event: Event) -> bool:
    """Whether the mark of an event that was recorded has been passed; to ask takes no time."""
    return core_hooks.is_done(event) and (event._recorded_at or 0.0) <= clock.current.now()


# Report to instruments how autograd's engine orders streams in a backward pass.
#
# Where a gradient passes from one stream to another, the engine records an event on the first,
# makes the second wait for it, and reports to the allocator that the second uses the memory. It
# does so in C++ and calls our device guard, which writes each of these calls into a log of the
# calling thread (`simgpu._native.guard_code`). `_Log.report` reads that log and calls the
# instruments: before the next kernel of the thread, and after the backward pass. While no
# instrument overrides one of these methods and no clock follows the devices, there is no log.

_ROOM = 4096  # entries between two kernels


class _Log:
    """The log of one backward pass: how many entries, room for how many, and the entries."""

    def __init__(self) -> None:
        self.entries = array("q", bytes(8 * (2 + 4 * _ROOM)))
        self.entries[1] = _ROOM
        self.address = self.entries.buffer_info()[0]
        self.events: dict[int, Event] = {}

    def report(self) -> None:
        """Report all entries to the instruments, oldest first."""
        entries = self.entries
        count, entries[0] = entries[0], 0
        if count > _ROOM:
            raise RuntimeError(
                f"autograd made streams wait {count} times between two kernels of a backward pass, "
                f"of which {_ROOM} could be followed"
            )
        for at in range(2, 2 + 4 * count, 4):
            kind, handle, device, number = entries[at : at + 4]
            index = device >> 8
            if index < len(world.active_devices):  # else it has outlived its device
                self._report(kind, handle, Stream(index, stream_id=number))

    def _report(self, kind: int, handle: int, stream: Stream) -> None:
        if kind == USES:
            for used in hooks.used_on_stream:
                used(handle, stream)
            return
        event = self.events.get(handle)
        if event is None:
            event = self.events[handle] = Event()
        if kind == RECORDED:
            event.record(stream)
        else:
            event.wait(stream)


_logs: dict[int, _Log] = {}

# Called when a backward pass of the thread is over, and PyTorch's modes are those before it.
after_backward: list[Callable[[], object]] = []


@contextmanager
def logging_engine_waits() -> Iterator[None]:
    """Report waits of a backward pass to instruments, within the block in this thread."""
    row = thread_rows.per_thread.row
    observed = hooks.stream_waits or hooks.event_recorded or hooks.used_on_stream
    if row[LOG] or not (observed or clock.current.follows_devices):
        yield
        return
    log = _Log()
    _logs[log.address] = log
    row[LOG] = log.address
    try:
        yield
        log.report()
    finally:
        row[LOG] = 0
        del _logs[log.address]
        for call in after_backward:
            call()


def report_engine_waits() -> None:
    """Report what the calling thread's backward pass has ordered until now, if it is in one."""
    address = thread_rows.per_thread.row[LOG]
    if address:
        _logs[address].report()


# Streams that another library made: known by their handles, used as any other stream is.


class ExternalStream(Stream):
    """A stream that another library made (torch.cuda.ExternalStream), by its handle.

    Args: `stream_ptr`, which `cuda_stream` says of itself; `device` as for a Stream.
    """

    _handle: int

    def __new__(
        cls, stream_ptr: int, device: torch.device | str | int | None = None, **_: Any
    ) -> ExternalStream:
        world.initialize()
        # The lower half is the number of a stream that was made here (`handle_of`).
        self = super().__new__(cls, device, stream_id=stream_ptr & 0xFFFFFFFF)
        assert isinstance(self, ExternalStream), "made of this class"
        self._handle = stream_ptr
        return self

    @property
    def cuda_stream(self) -> int:
        """The handle that the other library gave."""
        return self._handle


def get_stream_from_external(
    data_ptr: int, device: torch.device | str | int | None = None
) -> Stream:
    """The stream of `device` with this handle, which another library made."""
    return ExternalStream(data_ptr, device)


# Streams that sleep, as by `torch.cuda._sleep`: the one thing that takes time on them.


def sleep(seconds: float) -> None:
    """Keep the current stream of the current device busy for so long, and return at once."""
    stream = current_stream()
    begin = max(clock.current.now(), busy_until(stream.device_index, stream))
    stay_busy(stream, begin + seconds)


def wait_for_sleep(index: int) -> None:
    """Wait until the calling thread's current stream on device `index` does not sleep."""
    if index < len(world.active_devices) and world.active_devices[index].busy_until:
        clock.current.wait_until(busy_until(index, None))
