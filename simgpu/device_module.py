"""`torch.simgpu`: the device module, name for name as in `torch.cuda`."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

import torch

from simgpu import _generators, _legacy, _refused_names, _world
from simgpu._memory_functions import (
    device_memory_used,
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from simgpu._refused_names import DEVICE_NAME
from simgpu._relabel import DEVICE_TYPE
from simgpu._settings import (
    CAPABILITY,
    caching_allocator_enable,
    get_allocator_backend,
    get_arch_list,
    get_gencode_flags,
    get_sync_debug_mode,
    ipc_collect,
    is_bf16_supported,
    is_current_stream_capturing,
    is_tf32_supported,
    set_sync_debug_mode,
)
from simgpu._streams import Event, Stream, current_stream, default_stream, set_stream

_Device = torch.device | str | int | None

__all__ = [
    "DeviceProperties",
    "Event",
    "Stream",
    "StreamContext",
    "caching_allocator_enable",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
]


_initialized = True  # torch.utils.checkpoint asks before it keeps the random streams' states


class DeviceProperties(NamedTuple):
    """What a device says of itself (torch.cuda.get_device_properties); memory in bytes."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def init() -> None:
    """Wake the devices up: they are, unless the process was forked from one that used them."""
    _world.check_fork()


def is_available() -> bool:
    """Whether there are simulated devices."""
    return _world.device_count() > 0


def is_initialized() -> bool:
    """Whether the devices are awake: always."""
    return True


def _is_in_bad_fork() -> bool:
    return _world.is_in_bad_fork()


def device_count() -> int:
    """How many simulated devices there are."""
    return _world.device_count()


def current_device() -> int:
    """Index of the calling thread's current device."""
    return _world.current_device()


def set_device(device: _Device) -> None:
    """Make `device` current in the calling thread; a negative index changes nothing."""
    index = _world.resolve(device)
    _world.set_current_device(index)


class device:
    """Context manager: `device` is current within (torch.cuda.device); None changes nothing."""

    def __init__(self, device: _Device) -> None:
        self._index = _world.resolve(device)
        self._outer = -1

    def __enter__(self) -> None:
        self._outer = _world.current_device()
        _world.set_current_device(self._index)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _world.set_current_device(self._outer)


class device_of(device):
    """Context manager: the device of a tensor is current within; others change nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.get_device() if obj.device.type == DEVICE_TYPE else None)


class StreamContext:
    """Context manager: `stream` and its device are current within; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        if self._stream is not None:
            self._stream.__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.__exit__(exc_type, exc, traceback)


def stream(stream: Stream | None) -> StreamContext:
    """Context manager: `stream` and its device are current within."""
    return StreamContext(stream)


def synchronize(device: _Device = None) -> None:
    """Wait for all work on `device`: it is done, since every call works at once."""
    _world.device(_world.resolve(device))


def get_device_properties(device: _Device = None) -> DeviceProperties:
    """Name, capability, memory in bytes and multiprocessors of `device`."""
    state = _world.device(_world.resolve(device))
    return DeviceProperties(DEVICE_NAME, *CAPABILITY, state.capacity, 1)


def get_device_name(device: _Device = None) -> str:
    """Name of `device`."""
    return get_device_properties(device).name


def get_device_capability(device: _Device = None) -> tuple[int, int]:
    """Compute capability (major, minor) of `device`."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("simgpu")` may cast to; PyTorch asks for them."""
    return [torch.float16, torch.bfloat16]


def can_device_access_peer(device: _Device, peer_device: _Device) -> bool:
    """Whether two different devices can copy to each other directly: any two can."""
    first = _world.device(_world.resolve(device))
    return first is not _world.device(_world.resolve(peer_device))


def manual_seed(seed: int) -> None:
    """Seed the current device's random stream; the other devices' are untouched."""
    _world.device(_world.current_device()).generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed every device's random stream."""
    for state in _world.active:
        state.generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's random stream from the operating system."""
    _world.device(_world.current_device()).generator.seed()


def seed_all() -> None:
    """Seed every device's random stream with one seed from the operating system."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """The seed of the current device's random stream."""
    return _world.device(_world.current_device()).generator.initial_seed()


def get_rng_state(device: _Device = None) -> torch.Tensor:
    """State of the random stream of `device`: a CPU uint8 tensor for `set_rng_state`."""
    return _world.device(_world.resolve(device)).generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: _Device = None) -> None:
    """Put the random stream of `device` into a state that `get_rng_state` gave."""
    _world.device(_world.resolve(device)).generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """States of all devices' random streams."""
    return [state.generator.get_state() for state in _world.active]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Put all devices' random streams into the given states, in the order of the devices."""
    for state, new_state in zip(_world.active, new_states, strict=True):
        state.generator.set_state(new_state)


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return _generators.default_generators()
    found = _legacy.find(name) or _refused_names.find(name)
    if found is not None:
        return found
    raise AttributeError(
        f"torch.{DEVICE_TYPE} has no attribute {name!r}: it mirrors torch.cuda as far as "
        "simulated devices have the thing"
    )
