"""A device that is lost: every later use of it raises CUDA's error, until the devices end."""

from __future__ import annotations

from collections.abc import Collection

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import instruments
from simgpu._runtime.instruments import Instrument, Launch
from simgpu.errors import DeviceLostError


class _LostDevices(Instrument):
    """Refuses all work of the devices that are lost; nobody's instrument while none is."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.told: set[int] = set()  # which of them somebody knows of

    def before_launch(self, launch: Launch) -> None:
        for device in (launch.source, launch.target):
            if device.type != "cpu":
                self._check(device.index)

    def before_allocate(self, device: torch.device, nbytes: int) -> None:
        self._check(device.index)

    def host_synchronizes(self, awaited: torch.device | torch.Stream | torch.Event) -> None:
        device = awaited if isinstance(awaited, torch.device) else awaited.device
        if device is not None:  # an event that was never recorded
            self._check(device.index)

    def devices_removed(self) -> None:
        find_devices()

    def _check(self, index: int) -> None:
        if index in self.reasons:
            self.told.add(index)
            raise DeviceLostError(self.reasons[index])


_lost = _LostDevices()


def text_of_loss(reason: str) -> str:
    """What is told with every error of a device that is lost for this reason."""
    return (
        f"{DEVICE_TYPE} error: uncorrectable ECC error encountered. {reason}: it is of no use "
        "until its devices end"
    )


def mark_lost(index: int, text: str) -> None:
    """Lose device `index` for good: every later use of it raises an error of this text."""
    if not _lost.reasons:
        instruments.add(_lost)
    _lost.reasons.setdefault(index, text)


def check(index: int) -> None:
    """Raise DeviceLostError if device `index` is lost."""
    _lost._check(index)


def is_any_lost(indices: Collection[int]) -> bool:
    """Whether one of these devices is lost, be it told or not."""
    return bool(_lost.reasons) and not _lost.reasons.keys().isdisjoint(indices)


def untold() -> list[int]:
    """The devices that are lost without anybody knowing."""
    return [index for index in _lost.reasons if index not in _lost.told]


def untold_errors() -> list[DeviceLostError]:
    """An error for each device that is lost without anybody knowing: whoever asks is told."""
    found = untold()
    _lost.told.update(found)
    return [DeviceLostError(_lost.reasons[index]) for index in found]


def find_devices() -> None:
    """No device is lost any more: there are others now, or someone wants to go on with these."""
    _lost.reasons.clear()
    _lost.told.clear()
    instruments.remove(_lost)
