"""Streams that are captured into a CUDA graph: what they record, and what is forbidden meanwhile.

While a stream is captured (torch.cuda.CUDAGraph), its work is recorded to be replayed. As on CUDA,
other streams join a capture by waiting for work of it, and have to be waited for before it ends; a
copy between devices makes their streams wait for each other. Whatever would make the host wait for
captured work, or ask for it, is forbidden, and spoils the capture. What is recorded and how it is
replayed is in `simgpu._cuda.graphs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from simgpu._core import hooks, streams
from simgpu._core.hooks import Instrument, Launch, add, remove
from simgpu._core.launch import other_end
from simgpu._core.order import Awaited, Order, Queue
from simgpu._core.streams import key_of
from simgpu._random.generator_state import Stream
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import CaptureError

NOT_PERMITTED = "operation not permitted when stream is capturing"


def of_current_stream() -> Capture | None:
    """The capture that the current stream takes part in."""
    return streams.captured.get(key_of(streams.current_stream())) if streams.captured else None


class Capture(Instrument):
    """A capture that began on `stream`, and the streams that have joined it."""

    def __init__(self, stream: torch.Stream) -> None:
        self.origin = key_of(stream)
        if self.origin in streams.captured:
            raise CaptureError(f"{DEVICE_TYPE} error: {NOT_PERMITTED}: another graph captures it")
        self.is_invalid = False
        self.order = Order()  # of captured work: it knows those streams that have joined
        self.order.clock(self.origin)
        # Where streams of random numbers were at first; by identity, and kept so that it is theirs.
        self._starts: dict[int, tuple[Stream, int]] = {}

    def begin(self) -> None:
        """Capture from now on."""
        streams.captured[self.origin] = self
        add(self)

    def stop(self) -> None:
        """Capture no more."""
        remove(self)
        for queue in self.order.clocks:
            streams.captured.pop(queue, None)

    def holds(self, queue: Queue) -> bool:
        """Whether work of this stream is captured."""
        return queue in self.order.clocks

    def drawn_from(self, stream: Stream) -> int:
        """The offset of `stream` within the graph: how far it has been drawn in the capture."""
        offset = stream.get_offset()
        return (offset - self._starts.setdefault(id(stream), (stream, offset))[1]) % 2**64

    def go_on_at(self, stream: Stream, offset: int) -> None:
        """Draw from this offset within the graph on, as in every replay."""
        self.drawn_from(stream)
        stream.set_offset((self._starts[id(stream)][1] + offset) % 2**64)

    def refuse(self, reason: str = NOT_PERMITTED) -> NoReturn:
        """Raise for what a capture does not survive."""
        self.is_invalid = True
        raise CaptureError(f"{DEVICE_TYPE} error: {reason}")

    def check_end(self) -> None:
        """Raise if what was captured makes no graph."""
        if self.is_invalid:
            raise CaptureError(
                f"{DEVICE_TYPE} error: operation failed due to a previous error during capture"
            )
        known = self.order.clock(self.origin)
        for queue, clock in self.order.clocks.items():
            if known.get(queue, 0) < clock.get(queue, 0):
                raise CaptureError(
                    f"{DEVICE_TYPE} error: capturing stream has unjoined work: stream {queue[1]} "
                    f"of device {queue[0]} has not been waited for"
                )

    def before_launch(self, launch: Launch) -> None:
        queue = launch.device.index, launch.stream
        other = other_end(launch)
        if other is not None:
            self._wait(queue, other)
        if self.holds(queue):
            self.order.begin(queue)

    def launched(self, launch: Launch, result: Any) -> None:
        other = other_end(launch)
        if other is not None:
            self._wait(other, (launch.device.index, launch.stream))

    def event_recorded(self, event: torch.Event, stream: torch.Stream) -> None:
        if self.holds(key_of(stream)):
            self.order.record(event, key_of(stream))
        else:
            self.order.events.pop(event, None)

    def stream_waits(self, stream: torch.Stream | None, awaited: hooks.Awaited) -> None:
        if stream is not None and not isinstance(awaited, hooks.Collective):
            self._wait(key_of(stream), awaited)

    def _wait(self, waiting: Queue, awaited: Awaited) -> None:
        """Later work of a stream waits for others, which may be captured."""
        if not self._marks(awaited):
            if self.holds(waiting):
                self.refuse("dependency created on uncaptured work in another stream")
            return
        if not self.holds(waiting):
            if waiting[1] == 0:
                self.refuse(
                    "operation would make the legacy stream depend on a capturing blocking stream"
                )
            self.order.begin(waiting)  # to wait is work as well
            streams.captured[waiting] = self
        self.order.wait(waiting, awaited)

    def _marks(self, awaited: torch.device | Awaited) -> bool:
        """Whether there is captured work on a device or stream, or before an event."""
        if isinstance(awaited, torch.device):
            return any(device == awaited.index for device, _ in self.order.clocks)
        if isinstance(awaited, (torch.Event, hooks.Collective)):
            return awaited in self.order.events
        return self.holds(awaited if isinstance(awaited, tuple) else key_of(awaited))

    def host_synchronizes(self, awaited: torch.device | torch.Stream | torch.Event) -> None:
        if self._marks(awaited):
            event = isinstance(awaited, torch.Event)
            self.refuse(streams.CAPTURED_EVENT if event else NOT_PERMITTED)

    def devices_changed(self, devices: Sequence[torch.device]) -> None:
        if not devices:
            self.is_invalid = True
            self.stop()


# What seeds and states of generators are while a graph is captured (torch.cuda.CUDAGraph).
#
# A graph draws from where the generator is at each replay. So as on CUDA there is no new seed in a
# capture, and an offset is how far the generator has been drawn within the graph: to set it, as
# `torch.utils.checkpoint` does to draw a mask again, is part of what is replayed. Outside of
# captures these functions are the methods of the generator. (ATen/cuda/CUDAGeneratorImpl.cpp)

_Stock: Any = torch._C.Generator


def check_not_capturing(attempt: str) -> None:
    """Raise for what CUDA's generators do not do while the current stream is captured."""
    if of_current_stream() is not None:
        raise CaptureError(
            f"{attempt} during CUDA graph capture. If you need this call to be captured, please "
            "file an issue. Current cudaStreamCaptureStatus: cudaStreamCaptureStatusActive"
        )


def manual_seed(generator: Any, seed: int) -> None:
    """Restart `generator` from `seed`; in a capture there is no other."""
    if of_current_stream() is None:
        generator.manual_seed(seed)
    else:
        _check_same_seed(generator, _Stock().manual_seed(seed).initial_seed())


def seed(generator: Any) -> int:
    """Restart `generator` from a seed drawn from the operating system, and return the seed."""
    check_not_capturing("Cannot call CUDAGeneratorImpl::seed")
    return generator.seed()  # type: ignore[no-any-return]


def get_state(generator: Any) -> torch.Tensor:
    """Where `generator` is; in a capture, how far it has been drawn there."""
    capture = _capture_of(generator)
    if capture is not None:
        generator = Stream(generator.initial_seed(), capture.drawn_from(generator))
    return generator.get_state()  # type: ignore[no-any-return]


def set_state(generator: Any, new_state: torch.Tensor) -> None:
    """Restore `generator` to a state of `get_state`; in a capture, also in every replay."""
    capture = _capture_of(generator)
    if capture is None:
        generator.set_state(new_state)
        return
    wanted = Stream()
    wanted.set_state(new_state)
    _check_same_seed(generator, wanted.initial_seed())
    capture.go_on_at(generator, wanted.get_offset())


def _capture_of(generator: Any) -> Capture | None:
    return of_current_stream() if isinstance(generator, Stream) else None


def _check_same_seed(generator: Any, seed: int) -> None:
    if generator.initial_seed() != seed:
        raise CaptureError(
            "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new "
            "seed is the same as the original seed."
        )
