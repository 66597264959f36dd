"""`torch.simgpu`, the module that PyTorch looks up for the device type; as `torch.cuda`.

Each file has the functions of one part of torch.cuda: devices, streams, memory, random numbers.

May import: `_backend`, `_core`, `_config`, `errors`, `_util`, `torch`.
"""

from __future__ import annotations

from typing import Any

from simgpu._backend import generators
from simgpu._backend.namespace import tensor_types, unsupported
from simgpu._backend.namespace.devices import (
    DeviceProperties,
    Initialized,
    caching_allocator_enable,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_allocator_backend,
    get_amp_supported_dtype,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_gencode_flags,
    get_sync_debug_mode,
    init,
    ipc_collect,
    is_available,
    is_bf16_supported,
    is_current_stream_capturing,
    is_initialized,
    is_tf32_supported,
    set_device,
    set_sync_debug_mode,
)
from simgpu._backend.namespace.devices import _is_in_bad_fork as _is_in_bad_fork
from simgpu._backend.namespace.memory import (
    device_memory_used,
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from simgpu._backend.namespace.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from simgpu._backend.namespace.streams import (
    StreamContext,
    current_stream,
    default_stream,
    stream,
    synchronize,
)
from simgpu._core.streams import Event, ExternalStream, Stream, get_stream_from_external, set_stream
from simgpu._util.naming import DEVICE_TYPE

__all__ = [
    "DeviceProperties",
    "Event",
    "ExternalStream",
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
    "get_stream_from_external",
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
    "memory_snapshot",
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


_initialized = Initialized()  # torch.utils.checkpoint asks before it keeps states of generators
_lazy_init = init  # C++ calls it once; PyTorch 2.11 would look for it every time


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return generators.default_generators()
    found = tensor_types.find(name) or unsupported.find(name)
    if found is not None:
        return found
    raise AttributeError(
        f"torch.{DEVICE_TYPE} has no attribute {name!r}: it mirrors torch.cuda as far as "
        "simulated devices have the thing"
    )
