"""Streams of simulated devices; events, their marks, are in `events`.

By itself a simulated device does its work while it is being asked for, so a stream has nothing to
wait for but sleep (`sleeping`), which programs put there to see who waits. What remains of it is
its identity, the device it belongs to, and which stream is current in a thread. An executor
(`executors`) may queue work and run it later, and a clock (`clock`) may let it take time: whoever
waits for a stream asks both. Shapes follow `torch.cuda.Stream`.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch

from simgpu._naming import DEVICE_TYPE, PRIVATE_USE_1, visible_text
from simgpu._runtime import clock, executors, thread_state, world
from simgpu._runtime.instruments import hooks
from simgpu._runtime.thread_state import CURRENT_DEVICE, STREAMS

Key = tuple[int, int]  # of a stream: the index of its device, and its number

# The streams that are being captured into graphs.
captured: set[Key] = set()

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

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        pass  # what it is, `__new__` has told C++

    @property
    def priority(self) -> int:
        """From -3 to 0."""
        return 1 - (self.stream_id >> 1 & 15) if self.stream_id & 1 else 0

    @property
    def cuda_stream(self) -> int:
        """What stands for the stream where C would take a pointer; 0 for the default stream."""
        return handle_of(self.device_index, self.stream_id)

    @property
    def native_handle(self) -> int:
        """The same, by the name that it has for all kinds of devices."""
        return self.cuda_stream

    def wait_event(self, event: torch.Event) -> None:
        """Let later work wait for `event`."""
        event.wait(self)

    def wait_stream(self, stream: torch.Stream) -> None:
        """Let later work wait for `stream`."""
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
        return clock.passed(busy_until(self.device_index, self)) and executors.is_done(self)

    def is_capturing(self) -> bool:
        """Whether its work is recorded in a graph, and not done."""
        return is_captured(self)

    def synchronize(self) -> None:
        """Wait until all work asked for is done."""
        clock.wait_until(busy_until(self.device_index, self))
        for waits in hooks.host_synchronizes:
            waits(self)

    def __enter__(self) -> Stream:
        make_current(self, self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

    Which stream is current, its number in `thread_state` says: C++ makes streams current, too.
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
    """Let `stream` sleep until `moment`, unless that is over."""
    if moment > clock.now():
        world.device(stream.device_index).sleep_until(moment, stream.stream_id)


def key_of(stream: torch.Stream) -> Key:
    """What a stream is known by, whichever object stands for it."""
    return stream.device_index, stream.stream_id


def is_captured(stream: torch.Stream) -> bool:
    """Whether the work of `stream` is recorded in a graph."""
    return key_of(stream) in captured


def current_stream_id(index: int) -> int:
    """Number of the calling thread's current stream on device `index`; 0 is the default stream."""
    return thread_state.per_thread.row[STREAMS + index]


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
    thread_state.per_thread.row[STREAMS + stream.device_index] = stream.stream_id


def make_current(block: object, stream: Stream) -> None:
    """Make `stream` and its device current in the calling thread, until `put_back(block)` there.

    One block may be entered by several threads at the same time, and again within itself.
    """
    index = stream.device_index
    if isinstance(stream, Stream):
        world.device(index)  # raises, before anything is changed
    row = thread_state.per_thread.row
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
    thread_state.per_thread.row[STREAMS + index] = number
    world.set_current_device(device)
