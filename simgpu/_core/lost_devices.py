"""Devices that are lost, and errors of kernels that surface later than they happen, as on CUDA."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from simgpu._core import hooks
from simgpu._core.hooks import Instrument, Launch
from simgpu._core.operators import found_no_room
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import DeviceLostError


class LostDevices(Instrument):
    """Refuses all work of the devices that are lost; not installed while none is."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.reported: set[int] = set()  # those whose loss was reported

    def before_launch(self, launch: Launch) -> None:
        for device in (launch.source, launch.target):
            if device.type != "cpu":
                self.check(device.index)

    def before_allocate(self, device: torch.device, nbytes: int) -> None:
        self.check(device.index)

    def host_synchronizes(self, awaited: torch.device | torch.Stream | torch.Event) -> None:
        device = awaited if isinstance(awaited, torch.device) else awaited.device
        if device is not None:  # an event that was never recorded
            self.check(device.index)

    def devices_changed(self, devices: Sequence[torch.device]) -> None:
        if not devices:
            clear_lost()

    def mark(self, index: int, text: str) -> None:
        """Lose device `index` for good: every later use of it raises an error of this text."""
        if not self.reasons:
            hooks.add(self)
        self.reasons.setdefault(index, text)

    def check(self, index: int) -> None:
        """Raise DeviceLostError if device `index` is lost."""
        if index in self.reasons:
            self.reported.add(index)
            raise DeviceLostError(self.reasons[index])

    def is_any(self, indices: Collection[int]) -> bool:
        """Whether one of these devices is lost, reported or not."""
        return bool(self.reasons) and not self.reasons.keys().isdisjoint(indices)

    def unreported(self) -> list[int]:
        """The lost devices of which no error has been raised yet."""
        return [index for index in self.reasons if index not in self.reported]

    def unreported_errors(self) -> list[DeviceLostError]:
        """An error for each of these; marks them as reported."""
        found = self.unreported()
        self.reported.update(found)
        return [DeviceLostError(self.reasons[index]) for index in found]


lost = LostDevices()


def text_of_loss(reason: str) -> str:
    """The text of every error of a device that is lost for this reason."""
    return (
        f"{DEVICE_TYPE} error: uncorrectable ECC error encountered. {reason}: it cannot be used "
        "until its devices end"
    )


def clear_lost() -> None:
    """No device is lost any more: there are others now, or someone wants to go on with these."""
    lost.reasons.clear()
    lost.reported.clear()
    hooks.remove(lost)


# Errors of kernels, which surface later than they happen, as on CUDA.
#
# A kernel that is queued has returned by the time it runs. What it raises then, such as an index
# out of range, is what CUDA calls a device-side assert: the device is lost, and a wait for
# it raises. The text is PyTorch's (c10/cuda/CUDAException.cpp).

_ASSERT = (
    f"{DEVICE_TYPE} error: device-side assert triggered\n"
    "Search for `cudaErrorAssert' in "
    "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
    "information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace "
    "below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def mark_lost_by_error(error: Exception, index: int, stream: int, name: str) -> None:
    """Lose device `index`, whose kernel `name` has raised `error`; nothing is raised here."""
    where = f"{name} on stream {stream} of {DEVICE_TYPE}:{index}"
    if found_no_room(error):
        text = f"{DEVICE_TYPE} out of memory. This machine, which simulates it, has no room for "
        lost.mark(index, f"{text}{where}: {error}")
    else:
        lost.mark(index, f"{_ASSERT}{where} raised {type(error).__name__}: {error}")
