"""Making simulated devices: `simgpu.devices(n)`, and what a process does at start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from simgpu import _backend, _world

COUNT_VARIABLE = "SIMGPU_DEVICE_COUNT"


@contextmanager
def devices(count: int) -> Iterator[list[torch.device]]:
    """Have `count` fresh simulated GPUs for the length of a `with` block.

    Args:
        count: 1 to 64.

    Yields the devices, ``simgpu:0`` to ``simgpu:{count - 1}``. Current device, streams, memory
    ledgers and random streams begin anew at every entry; the random streams are seeded by
    ``torch.initial_seed()``.

    Raises:
        TypeError, ValueError: `count` is no int, or out of range.
        DevicesActiveError: there are simulated devices already; blocks do not nest.
        BackendSlotTakenError: another package uses PyTorch's slot for outside devices.
    """
    _backend.install()
    world = _world.enter(count)
    try:
        yield [device.torch_device for device in world.devices]
    finally:
        _world.leave(world)


def start_process_devices() -> None:
    """Make the devices that SIMGPU_DEVICE_COUNT asks for, for the rest of the process.

    Does nothing where they have been made already, as `import torch` does by itself wherever
    simgpu is installed.
    """
    value = os.environ.get(COUNT_VARIABLE, "")
    if not value or _world.device_count():
        return
    if not value.isdecimal():
        raise ValueError(f"{COUNT_VARIABLE}={value!r} must be a number from 1 to 64")
    _backend.install()
    _world.enter(int(value))
