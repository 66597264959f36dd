"""Which devices there are and which one is current, as in `torch.cuda`."""

from __future__ import annotations

from types import TracebackType

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import world
from simgpu._runtime.world import DeviceLike


def init() -> None:
    """Wake the devices up: they are, unless the process was forked from one that used them."""
    world.check_fork()


def is_available() -> bool:
    """Whether there are simulated devices."""
    return world.device_count() > 0


def is_initialized() -> bool:
    """Whether the devices are awake: always."""
    return True


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


class device:
    """Context manager: `device` is current within (torch.cuda.device); None changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = world.resolve(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = world.current_device()
        world.set_current_device(self.idx)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        world.set_current_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of a tensor is current within; others change nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.get_device() if obj.device.type == DEVICE_TYPE else None)
