"""`torch.simgpu.stream` and `torch.simgpu.synchronize`, as in `torch.cuda`."""

from __future__ import annotations

from types import TracebackType

from simgpu._runtime import streams, world
from simgpu._runtime.streams import Event as Event
from simgpu._runtime.streams import Stream as Stream
from simgpu._runtime.world import DeviceLike


class StreamContext:
    """Context manager: `stream` and its device are current within; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream
        # Here and not in the stream, which several threads may make current at the same time.
        self._outer: list[tuple[int, Stream]] = []

    def __enter__(self) -> None:
        if self._stream is not None:
            index = self._stream.device_index
            self._outer.append((world.current_device(), streams.current_stream(index)))
            streams.set_stream(self._stream)
            world.set_current_device(index)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            device, stream = self._outer.pop()
            streams.set_stream(stream)
            world.set_current_device(device)


def stream(stream: Stream | None) -> StreamContext:
    """Context manager: `stream` and its device are current within."""
    return StreamContext(stream)


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all work on `device`: it is done, since every call works at once."""
    world.synchronize(world.resolve(device))
