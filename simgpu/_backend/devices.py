"""Making simulated devices for the length of a block: `simgpu.devices(n)`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from simgpu._backend import install
from simgpu._runtime import world
from simgpu._runtime.capacities import capacities


@contextmanager
def devices(
    count: int, *, memory: int | str | Sequence[int | str] | None = None
) -> Iterator[list[torch.device]]:
    """Have `count` fresh simulated GPUs for the length of a `with` block.

    Args:
        count: 1 to 64.
        memory: what each device has: bytes, or a text such as "16GiB" or "512MiB"; a list gives
            one per device. 16 GiB unless told. Past it, torch.OutOfMemoryError is raised.

    Yields the devices, ``simgpu:0`` to ``simgpu:{count - 1}``. Current device, streams, memory
    ledgers and random streams begin anew at every entry; the random streams are seeded by
    ``torch.initial_seed()``.

    Raises:
        TypeError, ValueError: `count` is no int, or out of range.
        DevicesActiveError: there are simulated devices already; blocks do not nest.
        BackendSlotTakenError: another package uses PyTorch's slot for outside devices.
    """
    sizes = None if memory is None else capacities(count, memory)
    install.install()
    entered = world.enter(count, sizes)
    try:
        yield [device.torch_device for device in entered.devices]
    finally:
        world.leave(entered)
