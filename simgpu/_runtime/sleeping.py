"""Streams that sleep, as by `torch.cuda._sleep`: the one thing that takes time on them."""

from __future__ import annotations

from simgpu._runtime import clock, world
from simgpu._runtime.streams import busy_until, current_stream, stay_busy


def sleep(seconds: float) -> None:
    """Keep the current stream of the current device busy for so long, and return at once."""
    stream = current_stream()
    begin = max(clock.now(), busy_until(stream.device_index, stream))
    stay_busy(stream, begin + seconds)


def wait_for_sleep(index: int) -> None:
    """Let the calling thread wait until its current stream on device `index` does not sleep."""
    if index < len(world.active_devices) and world.active_devices[index].busy_until:
        clock.wait_until(busy_until(index, None))
