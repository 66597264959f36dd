"""`torch.simgpu.manual_seed`, `get_rng_state` and others, as in `torch.cuda.random`.

The generators that they seed and read are in `simgpu._core.device_generator`.
"""

from __future__ import annotations

import torch

from simgpu._core import captures, world
from simgpu._core.world import DeviceLike
from simgpu._util.naming import export_public_names

# A forked child that may not have devices may seed them: CUDA puts that off until it has some. So
# `torch.manual_seed` and the seeds of a DataLoader's workers reach only the CPU's stream.


def manual_seed(seed: int) -> None:
    """Seed the current device's random stream; the other devices' are untouched."""
    seed = int(seed)
    if not world.is_in_bad_fork():
        captures.manual_seed(world.known_device(world.current_device()).generator, seed)


def manual_seed_all(seed: int) -> None:
    """Seed every device's random stream."""
    for state in world.active_devices:
        captures.manual_seed(state.generator, int(seed))


def seed() -> None:
    """Seed the current device's random stream from the operating system."""
    if not world.is_in_bad_fork():
        captures.seed(world.known_device(world.current_device()).generator)


def seed_all() -> None:
    """Seed every device's random stream with one seed from the operating system."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """The seed of the current device's random stream."""
    return world.used_device(None).generator.initial_seed()


def get_rng_state(device: DeviceLike = None) -> torch.Tensor:
    """State of the random stream of `device`: a CPU uint8 tensor for `set_rng_state`."""
    return captures.get_state(world.used_device(device).generator)


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = None) -> None:
    """Put the random stream of `device` into a state that `get_rng_state` gave."""
    if not world.is_in_bad_fork():
        captures.set_state(world.known_device(world.resolve(device)).generator, new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices' random streams."""
    world.initialize()
    return [captures.get_state(state.generator) for state in world.active_devices]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Put the devices' random streams into the given states, in the order of the devices."""
    for index, new_state in enumerate(new_states):
        set_rng_state(new_state, index)


export_public_names(globals())
