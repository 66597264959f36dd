"""Events of simulated devices: marks in their streams. Shapes follow `torch.cuda.Event`."""

from __future__ import annotations

import itertools

import torch

from simgpu._naming import DEVICE_TYPE, visible_text
from simgpu._runtime import clock, executors
from simgpu._runtime.instruments import hooks
from simgpu._runtime.streams import busy_until, captured, current_stream, is_captured, stay_busy
from simgpu.errors import CaptureError, DeviceMismatchError, NotReadyError

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

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> None:
        """Nothing: an event is complete after __new__."""

    @property
    def device(self) -> torch.device | None:  # type: ignore[override]
        """The device of the first stream that it was recorded on; None before."""
        if self._recorded_on is None:
            return self._unrecorded_device
        return torch.device(DEVICE_TYPE, self._recorded_on)

    @property
    def cuda_event(self) -> int:
        """What stands for the event where C would take a pointer; 0 before it is recorded."""
        return self._number

    event_id = cuda_event

    def record(self, stream: torch.Stream | None = None) -> None:
        """Put the mark into `stream`, or into the current one.

        The first stream decides the event's device; raises DeviceMismatchError for another's.
        """
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
        self._recorded_at = max(clock.now(), busy_until(index, on))
        self._captured = is_captured(on)
        for recorded in hooks.event_recorded:
            recorded(self, on)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let `stream`, or the current one, wait for the mark; for none, if it was never set."""
        on = current_stream() if stream is None else stream
        if not self._number or self._is_node(on, records=False):
            return
        stay_busy(on, self._recorded_at or 0.0)
        for waits in hooks.stream_waits:
            waits(on, self)

    def _is_node(self, on: torch.Stream, records: bool) -> bool:
        """Whether this is done in the replays of a graph, which is told so, and not now.

        What PyTorch asks is whether the device's current stream is captured, whichever `on` is.
        """
        if not (self.external and captured and is_captured(current_stream(on.device_index))):
            return False
        if not is_captured(on):
            raise CaptureError(
                f"{DEVICE_TYPE} error: invalid argument: the device's current stream is captured, "
                "and the one that shall record or wait for an event with external=True is not: "
                "make that one current"
            )
        for tell in hooks.external_event:
            tell(self, on, records)
        return True

    def query(self) -> bool:
        """Whether the mark has been passed; true also of one that was never recorded."""
        self._refuse_captured()
        passed = self._recorded_at is None or clock.passed(self._recorded_at)
        return passed and executors.is_done(self)

    def synchronize(self) -> None:
        """Wait until the mark has been passed."""
        self._refuse_captured()
        clock.wait_until(self._recorded_at or 0.0)
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
    return executors.is_done(event) and (event._recorded_at or 0.0) <= clock.now()
