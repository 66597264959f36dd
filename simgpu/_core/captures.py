"""Streams that are captured into a CUDA graph: what they record, and what is forbidden meanwhile.

While a stream is captured (torch.cuda.CUDAGraph), its work is recorded to be replayed. As on CUDA,
other streams join a capture by waiting for work of it, and have to be waited for before it ends; a
copy between devices makes their streams wait for each other. Whatever would make the host wait for
captured work, or ask for it, is forbidden, and spoils the capture. What is recorded and how it is
replayed is in `simgpu._cuda.graphs`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from simgpu._core import streams
from simgpu._core.hooks import Instrument, Launch, add, remove
from simgpu._core.launch import other_end
from simgpu._core.streams import Key, key_of
from simgpu._random.generator_state import Stream
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import CaptureError

NOT_PERMITTED = "operation not permitted when stream is capturing"

_underway: list[Capture] = []

_Clock = dict[Key, int]  # how much of the work of each stream comes before a certain point


def of_current_stream() -> Capture | None:
    """The capture that the current stream takes part in."""
    if not streams.captured:
        return None
    key = key_of(streams.current_stream())
    return next((capture for capture in _underway if capture.holds(*key)), None)


class Capture(Instrument):
    """A capture that began on `stream`, and the streams that have joined it."""

    def __init__(self, stream: torch.Stream) -> None:
        self.origin = key_of(stream)
        if self.origin in streams.captured:
            raise CaptureError(f"{DEVICE_TYPE} error: {NOT_PERMITTED}: another graph captures it")
        self.is_invalid = False
        self._clocks: dict[Key, _Clock] = {self.origin: {self.origin: 0}}
        # Events that mark captured work; by identity, and kept so that it stays theirs.
        self._marks: dict[int, tuple[torch.Event, _Clock]] = {}
        # Where streams of random numbers were at first; by identity, and kept so that it is theirs.
        self._starts: dict[int, tuple[Stream, int]] = {}

    def begin(self) -> None:
        """Capture from now on."""
        streams.captured.add(self.origin)
        _underway.append(self)
        add(self)

    def stop(self) -> None:
        """Capture no more."""
        remove(self)
        if self in _underway:
            _underway.remove(self)
        streams.captured.difference_update(self._clocks)

    def holds(self, device: int, stream: int) -> bool:
        """Whether work of this stream is captured."""
        return (device, stream) in self._clocks

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
        known = self._clocks[self.origin]
        for key, clock in self._clocks.items():
            if known.get(key, -1) < clock[key]:
                raise CaptureError(
                    f"{DEVICE_TYPE} error: capturing stream has unjoined work: stream {key[1]} of "
                    f"device {key[0]} has not been waited for"
                )

    def before_launch(self, launch: Launch) -> None:
        key = launch.device.index, launch.stream
        other = other_end(launch)
        if other is not None:
            self._wait(key, self._clocks.get(other))
        if key in self._clocks:
            self._clocks[key][key] += 1

    def launched(self, launch: Launch, result: Any) -> None:
        key = launch.device.index, launch.stream
        other = other_end(launch)
        if other is not None:
            self._wait(other, self._clocks.get(key))

    def event_recorded(self, event: torch.Event, stream: torch.Stream) -> None:
        clock = self._clocks.get(key_of(stream))
        if clock is None:
            self._marks.pop(id(event), None)
        else:
            self._marks[id(event)] = event, dict(clock)

    def stream_waits(self, stream: torch.Stream, awaited: torch.Stream | torch.Event) -> None:
        self._wait(key_of(stream), self._clock_of(awaited))

    def _wait(self, waiting: Key, clock: _Clock | None) -> None:
        """Later work of a stream waits for the captured work of `clock`; None: for other work."""
        if clock is None:
            if waiting in self._clocks:
                self.refuse("dependency created on uncaptured work in another stream")
            return
        if waiting not in self._clocks:
            if waiting[1] == 0:
                self.refuse(
                    "operation would make the legacy stream depend on a capturing blocking stream"
                )
            self._clocks[waiting] = {waiting: 1}  # to wait is work as well
            streams.captured.add(waiting)
        own = self._clocks[waiting]
        for key, count in clock.items():
            own[key] = max(own.get(key, -1), count)

    def _clock_of(self, awaited: torch.Stream | torch.Event) -> _Clock | None:
        """How much captured work comes before the end of a stream or before an event."""
        if isinstance(awaited, torch.Stream):
            return self._clocks.get(key_of(awaited))
        return self._marks.get(id(awaited), (None, None))[1]

    def host_synchronizes(self, awaited: torch.device | torch.Stream | torch.Event) -> None:
        if isinstance(awaited, torch.device):
            captured = any(device == awaited.index for device, _ in self._clocks)
        else:
            captured = self._clock_of(awaited) is not None
        if captured:
            event = isinstance(awaited, torch.Event)
            self.refuse(streams.CAPTURED_EVENT if event else NOT_PERMITTED)

    def devices_removed(self) -> None:
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
