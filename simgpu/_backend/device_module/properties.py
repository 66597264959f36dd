"""`torch.simgpu.get_device_properties`, `get_device_name` and others, as in `torch.cuda`."""

from __future__ import annotations

from typing import NamedTuple

import torch

from simgpu._backend.device_module.settings import CAPABILITY
from simgpu._backend.device_module.unsupported import DEVICE_NAME
from simgpu._runtime import world
from simgpu._runtime.world import DeviceLike


class DeviceProperties(NamedTuple):
    """What `get_device_properties` returns; memory in bytes."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, capability, memory in bytes and multiprocessors of `device`."""
    state = world.device(world.resolve(device))
    return DeviceProperties(DEVICE_NAME, *CAPABILITY, state.capacity, 1)


def get_device_name(device: DeviceLike = None) -> str:
    """Name of `device`."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Compute capability (major, minor) of `device`."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("simgpu")` may cast to; PyTorch asks for them."""
    return [torch.float16, torch.bfloat16]


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether two different devices can copy to each other directly: any two can."""
    first = world.device(world.resolve(device))
    return first is not world.device(world.resolve(peer_device))
