"""`torch.simgpu.stream` and `torch.simgpu.synchronize`, as in `torch.cuda`.

Streams and events themselves are in `simgpu._core.streams`; `torch.simgpu.Stream` is the class
there.
"""

from __future__ import annotations

from types import TracebackType

from simgpu._core import streams, world
from simgpu._core.streams import Event as Event
from simgpu._core.streams import Stream
from simgpu._core.world import DeviceLike


class StreamContext:
    """Context manager: `stream` and its device are current within; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        world.initialize()
        if self._stream is not None:
            streams.make_current(self, self._stream)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        streams.put_back(self)


def stream(stream: Stream | None) -> StreamContext:
    """Context manager: `stream` and its device are current within."""
    return StreamContext(stream)


def current_stream(device: DeviceLike = None) -> Stream:
    """The calling thread's current stream on `device`."""
    return streams.current_stream(world.used_device(device).index)


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that is current on `device` unless another is set."""
    return streams.default_stream(world.used_device(device).index)


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all work on `device`, which is done unless a stream sleeps or work is queued."""
    world.synchronize(world.used_device(device).index)
