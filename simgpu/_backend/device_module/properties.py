"""`torch.simgpu.get_device_properties`, `get_device_name` and others, as in `torch.cuda`.

What they say is that of the device's model (`simgpu._models`).
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import torch

from simgpu._runtime import world
from simgpu._runtime.device import Device
from simgpu._runtime.world import DeviceLike


class DeviceProperties(NamedTuple):
    """What `get_device_properties` returns; memory in bytes."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    regs_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int  # 0 where it is not known
    warp_size: int
    uuid: uuid.UUID
    pci_bus_id: int
    pci_device_id: int
    pci_domain_id: int
    is_integrated: int
    is_multi_gpu_board: int

    def __repr__(self) -> str:
        """In the form of PyTorch's own (torch/csrc/cuda/Module.cpp, _CudaDeviceProperties)."""
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // 2**20}MB)"
        )


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, capability, memory in bytes, multiprocessors and others of `device`."""
    state = world.device(world.resolve(device))
    model = state.model
    major, minor = model.compute_capability
    return DeviceProperties(
        name=model.name,
        major=major,
        minor=minor,
        total_memory=state.capacity,
        multi_processor_count=model.multi_processor_count,
        max_threads_per_multi_processor=model.max_threads_per_multi_processor,
        regs_per_multiprocessor=model.regs_per_multiprocessor,
        shared_memory_per_block=49152,  # on all of them, unless a kernel asks for more
        shared_memory_per_block_optin=model.shared_memory_per_block_optin,
        shared_memory_per_multiprocessor=model.shared_memory_per_multiprocessor,
        L2_cache_size=model.L2_cache_size or 0,
        warp_size=32,
        uuid=_uuid(state),
        pci_bus_id=state.index + 1,
        pci_device_id=0,
        pci_domain_id=0,
        is_integrated=0,
        is_multi_gpu_board=0,
    )


def _uuid(device: Device) -> uuid.UUID:
    """The same for a device in every process, as that of a real one is."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{device.torch_device} {device.model.name}")


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
