"""`simgpu.devices(n)`: a context manager that makes n simulated devices."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack

import torch

from simgpu._backend import install
from simgpu._backend.device_block import DeviceBlock
from simgpu._runtime import world

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


_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def _bytes(memory: int | str) -> int:
    """Bytes that a number or a text such as "16GiB" means."""
    if isinstance(memory, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", memory.strip())
        if match is None or match[2] not in _UNITS:
            raise ValueError(
                f"memory={memory!r} must be a number of bytes or a number with one of the units "
                f"{', '.join(unit for unit in _UNITS if unit)}, such as '16GiB'"
            )
        return int(float(match[1]) * _UNITS[match[2]])
    if isinstance(memory, bool) or not isinstance(memory, int):
        raise TypeError(f"memory must be bytes (int) or a text such as '16GiB', got {memory!r}")
    if memory < 0:
        raise ValueError(f"memory={memory} must not be negative")
    return memory


def capacities(count: int, memory: int | str | Sequence[int | str]) -> list[int]:
    """Return the bytes of each device, from what `devices` is told."""
    if isinstance(memory, (bytes, bytearray)) or not isinstance(memory, Sequence | int | str):
        raise TypeError(
            f"memory must be bytes (int), a text or one of these per device, got {memory!r}"
        )
    if isinstance(memory, (int, str)):
        return [_bytes(memory)] * count
    if len(memory) != count:
        raise ValueError(f"memory={memory!r} has {len(memory)} entries for {count} devices")
    return [_bytes(entry) for entry in memory]
