"""`torch.simgpu`, the module that PyTorch looks up for the device type: it is like `torch.cuda`.

Here are devices and streams. `memory` counts bytes, `snapshots` lists the allocator's segments and
the history of allocations, `random` has the generators, and `on_demand` has the legacy tensor types
and the names that raise.

May import: `_backend`, `_core`, `_config`, `errors`, `_util`, `torch`.
"""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Any, NamedTuple

import torch

from simgpu._backend import generators
from simgpu._backend.namespace import memory, on_demand, random, snapshots
from simgpu._backend.namespace.memory import *  # noqa: F403
from simgpu._backend.namespace.memory import is_initialized as is_initialized
from simgpu._backend.namespace.random import *  # noqa: F403
from simgpu._config.gpus import GENERIC, uuid_of
from simgpu._core import streams, world
from simgpu._core.device import Device
from simgpu._core.streams import Event as Event
from simgpu._core.streams import ExternalStream as ExternalStream
from simgpu._core.streams import Stream as Stream
from simgpu._core.streams import get_stream_from_external as get_stream_from_external
from simgpu._core.streams import set_stream as set_stream
from simgpu._core.world import DeviceLike
from simgpu._util.naming import DEVICE_TYPE, export_public_names


def init() -> None:
    """Use the devices from now on, which are then those that there are.

    Raises ForkedError where the parent process used its devices, NoDevicesError where
    CUDA_VISIBLE_DEVICES hides all of them.
    """
    world.initialize()


def is_available() -> bool:
    """Whether there are simulated devices."""
    return world.device_count() > 0


class _Initialized:
    """`torch.simgpu._initialized`, whose truth changes while a program runs."""

    def __bool__(self) -> bool:
        return is_initialized()


def device_count() -> int:
    """How many simulated devices there are."""
    return world.device_count()


def current_device() -> int:
    """Index of the calling thread's current device."""
    world.initialize()
    return world.current_device()


def set_device(device: DeviceLike) -> None:
    """Make `device` current in the calling thread; a negative index changes nothing."""
    if _names_one(device):
        world.initialize()
    world.set_current_device(world.resolve(device))


def _names_one(device: DeviceLike) -> bool:
    """Whether a device is no negative number, by which a caller means to change nothing."""
    return not (isinstance(device, int) and device < 0)


class device(world.MakeCurrent):
    """Context manager: `device` is current within (torch.cuda.device); None changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        super().__init__(world.resolve(device))
        self._initializes = _names_one(device)

    def __enter__(self) -> None:
        if self._initializes:
            world.initialize()
        super().__enter__()


class device_of(device):
    """Context manager: the device of a tensor is current within; others change nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.get_device() if obj.device.type == DEVICE_TYPE else -1)


# `torch.simgpu.get_device_properties`, `get_device_name` and others, as in `torch.cuda`.
#
# What they say is that of the device's model (`simgpu._config`).


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
    gcnArchName: str  # the name, where PyTorch is not built for AMD
    max_threads_per_block: int
    clock_rate: int  # these three are 0 where they are not known; in kHz, kHz and bits
    memory_clock_rate: int
    memory_bus_width: int

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
    state = _device_of_id(device, "device")
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
        uuid=uuid_of(state.number, model),
        pci_bus_id=state.number + 1,
        pci_device_id=0,
        pci_domain_id=0,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName=model.name,
        max_threads_per_block=1024,  # on all of them
        clock_rate=model.clock_rate or 0,
        memory_clock_rate=model.memory_clock_rate or 0,
        memory_bus_width=model.memory_bus_width or 0,
    )


def _device_of_id(device: DeviceLike, what: str) -> Device:
    """The device with this index; for others what Python code of torch.cuda raises."""
    world.initialize()
    index = device if isinstance(device, int) else world.resolve(device)
    count = world.device_count()
    if count and not 0 <= index < count:
        raise AssertionError(f"Invalid {what} id: expected 0 to {count - 1}, got {index}")
    return world.device(index)


def get_device_name(device: DeviceLike = None) -> str:
    """Name of `device`."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """Compute capability (major, minor) of `device`."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("simgpu")` may cast to: any, as for CUDA."""
    return [found for found in vars(torch).values() if isinstance(found, torch.dtype)]


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    """Whether two different devices can copy to each other directly: any two can."""
    return _device_of_id(device, "device") is not _device_of_id(peer_device, "peer device")


# Build information and settings of `torch.simgpu`, by the names of torch.cuda.
#
# What concerns architectures follows from the models of the devices. Most others have a constant
# answer, or are kept for programs that ask: there is no compiler, and one allocator.

_MODES = ("default", "warn", "error")


def get_arch_list() -> list[str]:
    """The architectures that kernels exist for: those of the devices."""
    found = {device.model.compute_capability for device in world.active_devices}
    return [f"sm_{major}{minor}" for major, minor in sorted(found or {GENERIC.compute_capability})]


def get_gencode_flags() -> str:
    """The compiler flags for `get_arch_list`."""
    numbers = [name.removeprefix("sm_") for name in get_arch_list()]
    return " ".join(f"-gencode compute=compute_{number},code=sm_{number}" for number in numbers)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether the current device computes in bfloat16; older than Ampere, only by emulation."""
    if not world.device_count():
        return False
    capability = world.used_device(None).model.compute_capability
    return including_emulation or capability >= (8, 0)


def is_tf32_supported() -> bool:
    """Whether float32 products may be asked for in TF32 (Ampere and newer); they are in float32."""
    return is_bf16_supported(including_emulation=False)


def is_current_stream_capturing() -> bool:
    """Whether work of the current stream is recorded in a graph, and not done."""
    return streams.current_stream().is_capturing()


def get_allocator_backend() -> str:
    """The name of the allocator, which here is the device type's."""
    return DEVICE_TYPE


def caching_allocator_enable(value: bool = True) -> None:
    """Cache freed memory, or not: no effect, its segments stay reserved until `empty_cache`."""


def ipc_collect() -> None:
    """Give back memory that other processes have released: none of it is kept for them."""
    world.initialize()


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Choose what happens where a program synchronizes with a device: kept, and without effect.

    0, 1 or 2, or "default", "warn" or "error"; in force for as long as there are these devices.
    """
    if isinstance(debug_mode, str):
        if debug_mode not in _MODES:
            raise RuntimeError(f"debug_mode={debug_mode!r} must be one of {', '.join(_MODES)}")
        debug_mode = _MODES.index(debug_mode)
    world.used_device(None)
    current = world.current_world()
    assert current is not None, "there is one, or there would be no device"
    current.sync_debug_mode = debug_mode


def get_sync_debug_mode() -> int:
    """What `set_sync_debug_mode` was given last, as a number."""
    world.initialize()
    current = world.current_world()
    return 0 if current is None else current.sync_debug_mode


# Streams: the classes are in `simgpu._core.streams`.


class StreamContext:
    """Context manager: `stream` and its device are current within; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        world.initialize()
        if self._stream is not None:
            streams.make_current(self, self._stream)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        streams.put_back(self)


def stream(stream: Stream | None) -> StreamContext:
    """Context manager: `stream` and its device are current within."""
    return StreamContext(stream)


def current_stream(device: DeviceLike = None) -> Stream:
    """The calling thread's current stream on `device`."""
    return streams.current_stream(world.used_device(device).index)


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that is current on `device` unless another is set."""
    return streams.default_stream(world.used_device(device).index)


def synchronize(device: DeviceLike = None) -> None:
    """Wait for all work on `device`, which is done unless a stream sleeps or work is queued."""
    world.synchronize(world.used_device(device).index)


_initialized = _Initialized()  # torch.utils.checkpoint asks before it keeps states of generators
_lazy_init = init  # C++ calls it once; PyTorch 2.11 would look for it every time
_is_in_bad_fork = world.is_in_bad_fork
_exchange_device = world.exchange_device


def _maybe_exchange_device(index: int) -> int:
    """`_exchange_device`, as another object: the compiler has a table of both functions."""
    return world.exchange_device(index)


export_public_names(globals(), *(file.__name__ for file in (memory, snapshots, random, streams)))


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return generators.default_generators()
    found = on_demand.find_type(name) or on_demand.find_refusal(name)
    if found is not None:
        return found
    raise AttributeError(
        f"torch.{DEVICE_TYPE} has no attribute {name!r}: it mirrors torch.cuda as far as "
        "simulated devices have the thing"
    )
