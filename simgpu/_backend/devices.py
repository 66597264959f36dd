"""`simgpu.devices(n)`: a context manager that makes n simulated devices.

May import: `_backend/install`, `_backend`, `_runtime`, `_models`, `torch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from simgpu._backend import install
from simgpu._backend.device_block import DeviceBlock
from simgpu._models.gpus import Names, models_of
from simgpu._runtime import world
from simgpu._runtime.capacities import capacities

Memory = int | str | Sequence[int | str] | None  # of each device, or one entry per device


def devices(
    count: int, *, memory: Memory = None, model: Names = None, rng: str = "cuda"
) -> DeviceBlock:
    """Have `count` fresh simulated GPUs for the length of a `with` block.

    Args:
        count: 1 to 64.
        memory: what each device has: bytes, or a text such as "16GiB" or "512MiB"; a list gives
            one per device. What the model has unless told. Past it, torch.OutOfMemoryError is
            raised.
        model: which GPU each device says that it is, such as "A100" or "H100 SXM"; a list gives
            one per device. Name, compute capability, multiprocessors and memory follow it, and so
            do random numbers. Without one, 16 GiB and the multiprocessors of an H100.
        rng: "cuda" draws the numbers of CUDA's generator; "host" those of the CPU's kernels, in a
            stream of its own for each device.

    The block has the devices, ``simgpu:0`` to ``simgpu:{count - 1}``, as a list. Current device,
    streams, memory ledgers and random streams begin anew with every block; the random streams are
    seeded by ``torch.initial_seed()``. `simgpu.enable` does the same without a block.

    Raises:
        TypeError, ValueError: `count` is no int, or out of range; no such model; no such `rng`.
        DevicesActiveError: there are simulated devices already; blocks do not nest.
        BackendSlotTakenError: another package uses PyTorch's slot for outside devices.
        DeviceBlockError: what was returned is entered a second time.
    """
    arguments = describe_arguments(count, memory, model, rng)
    return DeviceBlock(
        f"simgpu.devices({arguments})",
        f"simgpu.enable({arguments})",
        lambda ends: start(count, memory, model, rng, ends),
    )


def describe_arguments(count: int, memory: Memory, model: Names, rng: str) -> str:
    """The arguments as a program writes them."""
    told = {"memory": memory, "model": model, "rng": None if rng == "cuda" else rng}
    named = [f"{name}={value!r}" for name, value in told.items() if value is not None]
    return ", ".join([repr(count), *named])


def start(
    count: int, memory: Memory, model: Names, rng: str, ends: ExitStack
) -> list[torch.device]:
    """Make fresh devices, which last until `ends` is closed."""
    sizes = None if memory is None else capacities(count, memory)
    models = None if model is None else models_of(count, model)
    install.install()
    entered = world.enter(count, sizes, models, rng)
    ends.callback(world.leave, entered)
    return [device.torch_device for device in entered.devices]
