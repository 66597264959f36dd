"""`simgpu.devices(n)`: a context manager that makes n simulated devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from simgpu._backend import install
from simgpu._backend.device_block import DeviceBlock
from simgpu._runtime import world
from simgpu._runtime.capacities import capacities

Memory = int | str | Sequence[int | str] | None  # of each device, or one entry per device


def devices(count: int, *, memory: Memory = None) -> DeviceBlock:
    """Have `count` fresh simulated GPUs for the length of a `with` block.

    Args:
        count: 1 to 64.
        memory: what each device has: bytes, or a text such as "16GiB" or "512MiB"; a list gives
            one per device. 16 GiB unless told. Past it, torch.OutOfMemoryError is raised.

    The block has the devices, ``simgpu:0`` to ``simgpu:{count - 1}``, as a list. Current device,
    streams, memory ledgers and random streams begin anew with every block; the random streams are
    seeded by ``torch.initial_seed()``. `simgpu.enable` does the same without a block.

    Raises:
        TypeError, ValueError: `count` is no int, or out of range.
        DevicesActiveError: there are simulated devices already; blocks do not nest.
        BackendSlotTakenError: another package uses PyTorch's slot for outside devices.
        DeviceBlockError: what was returned is entered a second time.
    """
    arguments = describe_arguments(count, memory)
    return DeviceBlock(
        f"simgpu.devices({arguments})",
        f"simgpu.enable({arguments})",
        lambda ends: start(count, memory, ends),
    )


def describe_arguments(count: int, memory: Memory) -> str:
    """The arguments as a program writes them."""
    return f"{count}" if memory is None else f"{count}, memory={memory!r}"


def start(count: int, memory: Memory, ends: ExitStack) -> list[torch.device]:
    """Make fresh devices, which last until `ends` is closed."""
    sizes = None if memory is None else capacities(count, memory)
    install.install()
    entered = world.enter(count, sizes)
    ends.callback(world.leave, entered)
    return [device.torch_device for device in entered.devices]
