"""The current device and streams, as `torch.accelerator` and PyTorch's C++ ask for them.

`torch.accelerator` asks the device guard, which knows one device only; here it asks `_world` and
`_streams` for as long as there are simulated devices. Where PyTorch converts, it asks the guard for
a missing index in C++, and is told the current device, so that `.to("simgpu")` means that.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from simgpu import _memory_functions, _streams, _virtual, _world
from simgpu._legacy import DTYPES
from simgpu._relabel import MAX_DEVICES


def _exchange_device(index: int) -> int:
    outer = _world.current_device()
    if index >= 0:
        _world.set_current_device(index)
    return outer


def _set_device(index: int) -> None:
    _world.set_current_device(index)


def _set_stream(stream: torch.Stream) -> None:
    _world.set_current_device(stream.device_index)
    _streams.set_stream(stream)


def _synchronize(index: int) -> None:
    _world.device(index)


def _capability(index: int) -> dict[str, Any]:
    _world.device(index)
    return {"supported_dtypes": set(DTYPES.values())}


_OURS: dict[str, Callable[..., Any]] = {
    "_accelerator_emptyCache": _memory_functions.empty_cache,
    "_accelerator_exchangeDevice": _exchange_device,
    "_accelerator_getDeviceCapability": _capability,
    "_accelerator_getDeviceIndex": _world.current_device,
    "_accelerator_getDeviceStats": _memory_functions.memory_stats,
    "_accelerator_getMemoryInfo": _memory_functions.mem_get_info,
    "_accelerator_getStream": _streams.current_stream,
    "_accelerator_isAllocatorInitialized": lambda: True,
    "_accelerator_maybeExchangeDevice": _exchange_device,
    "_accelerator_resetAccumulatedStats": _memory_functions.reset_accumulated_memory_stats,
    "_accelerator_resetPeakStats": _memory_functions.reset_peak_memory_stats,
    "_accelerator_setDeviceIndex": _set_device,
    "_accelerator_setStream": _set_stream,
    "_accelerator_synchronizeDevice": _synchronize,
}


def _routed(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return (ours if _world.active else theirs)(*args, **kwargs)

    return call


# c10/core/impl/DeviceGuardImplInterface.h: type, exchangeDevice, getDevice, ...
_GET_DEVICE = 2

# A c10::Device is two bytes, type and index, and comes back in a register.
_GetDevice = ctypes.CFUNCTYPE(ctypes.c_uint16)
_DEVICES = tuple(_virtual.PRIVATE_USE_1 | index << 8 for index in range(MAX_DEVICES))


def let_guard_know(guard: _virtual.Table) -> bool:
    """Let C++ know the current device; returns whether that was possible."""
    current_index: Any = getattr(torch._C, "_accelerator_getDeviceIndex", None)
    if current_index is None:
        return False
    answers = map(_DEVICES.__getitem__, _world.current_device_steps())
    put_back = guard.replace(_GET_DEVICE, _GetDevice(answers.__next__))
    outer = _world.current_device()
    try:
        for tried in (5, 3):
            _world._per_thread.current_device = tried
            if current_index() != tried:
                put_back()
                return False
    finally:
        _world._per_thread.current_device = outer
    return True


def install() -> None:
    """Put these in front of the C++ functions, which answer while there are no devices."""
    for name, ours in _OURS.items():
        theirs = getattr(torch._C, name, None)
        if theirs is not None:  # older releases have fewer
            setattr(torch._C, name, _routed(ours, theirs))
