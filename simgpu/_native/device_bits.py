"""How C++ stores a torch.device: a byte for its type, and the next one for its index."""

from __future__ import annotations

import torch

from simgpu._naming import PRIVATE_USE_1

DEVICE_BITS = 0xFFFF  # of a word, those that are the device
_NO_INDEX = 0xFF  # -1
CPU_BITS = _NO_INDEX << 8


def device_bits(device: torch.device) -> int:
    """A c10::Device as a number of two bytes: "cpu", or a device of simgpu's type."""
    kind = 0 if device.type == "cpu" else PRIVATE_USE_1
    return kind | (_NO_INDEX if device.index is None else device.index) << 8
