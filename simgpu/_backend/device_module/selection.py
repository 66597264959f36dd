"""`torch.simgpu.device_count`, `current_device` and `set_device`, as in `torch.cuda`."""

from __future__ import annotations

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import world
from simgpu._runtime.world import DeviceLike


def init() -> None:
    """Nothing to initialize; raises ForkedError where the parent process used its devices."""
    world.check_fork()


def is_available() -> bool:
    """Whether there are simulated devices."""
    return world.device_count() > 0


def is_initialized() -> bool:
    """Whether the process has used its devices: chosen one, or put something on it.

    init_device_mesh leaves the choice of a device to a process that has made it, and makes it for
    one that has not.
    """
    now = world.current_world()
    return now is not None and now.in_use() and not world.is_in_bad_fork()


def _is_in_bad_fork() -> bool:
    return world.is_in_bad_fork()


def device_count() -> int:
    """How many simulated devices there are."""
    return world.device_count()


def current_device() -> int:
    """Index of the calling thread's current device."""
    return world.current_device()


def set_device(device: DeviceLike) -> None:
    """Make `device` current in the calling thread; a negative index changes nothing."""
    index = world.resolve(device)
    world.set_current_device(index)


class device(world.MakeCurrent):
    """Context manager: `device` is current within (torch.cuda.device); None changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        super().__init__(world.resolve(device))


class device_of(device):
    """Context manager: the device of a tensor is current within; others change nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.get_device() if obj.device.type == DEVICE_TYPE else None)
