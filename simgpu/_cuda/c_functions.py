"""`torch._C._cuda_*`, which only a build of PyTorch with CUDA has, under `as_cuda`.

Programs, PyTorch's Python code and its test harness call some of them past `torch.cuda`. Each row
of `FUNCTIONS` is one such name and what it does here; a name that is not in it is missing, as it is
without simgpu. Signatures are those of torch/csrc/cuda/Module.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._backend.device_module import memory, memory_history, properties, settings
from simgpu._backend.device_module.unsupported import refusal
from simgpu._cuda import build
from simgpu._naming import DEVICE_TYPE, PRIVATE_USE_1
from simgpu._patches import Action, Patch, Row
from simgpu._runtime import sleeping, streams, world

_CYCLES_PER_SECOND = 1e9  # of the clock that `_sleep` counts in


def _nothing(*args: Any) -> None:
    """Nothing to do: no such thing is kept, started or waited for."""


def maybe_exchange_device(index: int) -> int:
    """`world.exchange_device`, as another object: the compiler has a table of both functions."""
    return world.exchange_device(index)


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    """Make a stream and its device current in the calling thread."""
    if device_type not in (PRIVATE_USE_1, _CUDA_NUMBER):
        raise ValueError(f"expected the number of a {DEVICE_TYPE} device type, got {device_type}")
    world.set_current_device(device_index)
    streams.set_stream(streams.Stream(device_index, stream_id=stream_id))


_CUDA_NUMBER = 1  # c10::DeviceType::CUDA


def _numbers(stream: torch.Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


def _current_stream(index: int) -> tuple[int, int, int]:
    """Number, device index and device type of the current stream of a device."""
    return _numbers(streams.current_stream(index))


def _default_stream(index: int) -> tuple[int, int, int]:
    """Number, device index and device type of the default stream of a device."""
    return _numbers(streams.default_stream(index))


def _sleep(cycles: int) -> None:
    """Keep the current stream busy for so many cycles."""
    sleeping.sleep(cycles / _CYCLES_PER_SECOND)


def _raw_stream(index: int) -> int:
    """What stands for the pointer of the current stream of a device."""
    return streams.handle_of(index, streams.current_stream_id(index))


def _synchronize() -> None:
    """Wait for the current device."""
    world.synchronize(world.current_device())


def _has_used(index: int) -> bool:
    """Whether anything was put on a device: what CUDA makes a context for."""
    return world.device(index).taken_count > 0


# Memory that a program has asked for without a tensor, by its address.
_raw: dict[int, torch.Tensor] = {}


def _raw_alloc(size: int, stream: int) -> int:
    """Take `size` bytes of the current device; returns their address."""
    taken = torch.empty(size, dtype=torch.uint8, device=DEVICE_TYPE)
    _raw[taken.data_ptr()] = taken
    return taken.data_ptr()


def _raw_delete(address: int) -> None:
    """Give back what `_raw_alloc` took."""
    if _raw.pop(address, None) is None:
        raise RuntimeError(f"invalid device pointer: {address:#x}")


def _raw_delete_all() -> None:
    """Give back all that `_raw_alloc` took."""
    _raw.clear()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    # Which device is current.
    "_cuda_getDeviceCount": world.device_count,
    "_cuda_getDevice": world.current_device,
    "_cuda_setDevice": world.set_current_device,
    "_cuda_exchangeDevice": world.exchange_device,
    "_cuda_maybeExchangeDevice": maybe_exchange_device,
    "_cuda_hasPrimaryContext": _has_used,
    "_cuda_isInBadFork": world.is_in_bad_fork,
    "_cuda_init": world.check_fork,
    "_cuda_canDeviceAccessPeer": properties.can_device_access_peer,
    # Streams, and waiting.
    "_cuda_setStream": _set_stream,
    "_cuda_getCurrentStream": _current_stream,
    "_cuda_getDefaultStream": _default_stream,
    "_cuda_getCurrentRawStream": _raw_stream,
    "_cuda_synchronize": _synchronize,
    "_cuda_sleep": _sleep,
    "_cuda_isCurrentStreamCapturing": settings.is_current_stream_capturing,
    "_cuda_set_sync_debug_mode": settings.set_sync_debug_mode,
    "_cuda_get_sync_debug_mode": settings.get_sync_debug_mode,
    # Memory.
    "_cuda_memoryStats": memory.memory_stats_as_nested_dict,
    "_cuda_resetAccumulatedMemoryStats": memory.reset_accumulated_memory_stats,
    "_cuda_resetPeakMemoryStats": memory.reset_peak_memory_stats,
    "_cuda_setMemoryFraction": memory.set_per_process_memory_fraction,
    "_cuda_getMemoryFraction": memory.get_per_process_memory_fraction,
    "_cuda_emptyCache": memory.empty_cache,
    "_cuda_getAllocatorBackend": settings.get_allocator_backend,
    "_cuda_ipc_collect": settings.ipc_collect,
    "_cuda_record_memory_history": memory_history.record_history,
    "_cuda_record_memory_history_legacy": memory_history.record_history_legacy,
    "_cuda_isHistoryEnabled": memory_history.is_recording,
    "_cuda_memorySnapshot": memory_history.snapshot,
    "_cuda_allocationTraceback": memory_history.allocation_traceback,
    "_cuda_attach_out_of_memory_observer": memory_history.observe_out_of_memory,
    "_cuda_cudaCachingAllocator_raw_alloc": _raw_alloc,
    "_cuda_cudaCachingAllocator_raw_delete": _raw_delete,
    "_cuda_clearCublasWorkspaces": _nothing,
    "_host_emptyCache": _nothing,
    # Elementwise kernels in the language of CUDA: libraries make them when they are imported.
    "_cuda_jiterator_compile_and_launch_kernel": refusal("torch.cuda.jiterator", None),
    # Named by modules that are imported where PyTorch is built with CUDA.
    "_cuda_CUDAAllocator_AllocatorState": refusal("torch.cuda.memory.MemPool", object),
    # How PyTorch was built.
    "_cuda_getArchFlags": lambda: " ".join(settings.get_arch_list()),
    "_cuda_getCompiledVersion": lambda: build.CUDA_NUMBER,
}


PATCHES: tuple[Row, ...] = (
    *(
        Patch("torch._C", name, value=function, why="a build of PyTorch without CUDA lacks it")
        for name, function in FUNCTIONS.items()
    ),
    Action(
        "memory that a program has asked for without a tensor: it is given back at the end",
        run=lambda patches: patches.then(_raw_delete_all),
        why="it is that of devices which end",
    ),
)
