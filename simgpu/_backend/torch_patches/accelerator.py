"""The current device and streams, as `torch.accelerator` and PyTorch's C++ ask for them.

`torch.accelerator` asks the device guard, which knows one device only; here it asks `_world` and
`_streams` for as long as there are simulated devices. Where PyTorch converts, it asks the guard for
a missing index in C++, and is told the current device, so that `.to("simgpu")` means that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._backend.device_module import memory
from simgpu._backend.tensor_types import DTYPES
from simgpu._runtime import streams, world


def _exchange_device(index: int) -> int:
    outer = world.current_device()
    if index >= 0:
        world.set_current_device(index)
    return outer


def _set_device(index: int) -> None:
    world.set_current_device(index)


def _set_stream(stream: torch.Stream) -> None:
    world.set_current_device(stream.device_index)
    streams.set_stream(stream)


def _capability(index: int) -> dict[str, Any]:
    world.device(index)
    return {"supported_dtypes": set(DTYPES.values())}


_OURS: dict[str, Callable[..., Any]] = {
    "_accelerator_emptyCache": memory.empty_cache,
    "_accelerator_exchangeDevice": _exchange_device,
    "_accelerator_getDeviceCapability": _capability,
    "_accelerator_getDeviceIndex": world.current_device,
    "_accelerator_getDeviceStats": memory.memory_stats,
    "_accelerator_getMemoryInfo": memory.mem_get_info,
    "_accelerator_getStream": streams.current_stream,
    "_accelerator_isAllocatorInitialized": lambda: True,
    "_accelerator_maybeExchangeDevice": _exchange_device,
    "_accelerator_resetAccumulatedStats": memory.reset_accumulated_memory_stats,
    "_accelerator_resetPeakStats": memory.reset_peak_memory_stats,
    "_accelerator_setDeviceIndex": _set_device,
    "_accelerator_setStream": _set_stream,
    "_accelerator_synchronizeDevice": world.synchronize,
}


def _routed(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return (ours if world.active_devices else theirs)(*args, **kwargs)

    return call


def install() -> None:
    """Put these in front of the C++ functions, which answer while there are no devices."""
    for name, ours in _OURS.items():
        theirs = getattr(torch._C, name, None)
        if theirs is not None:  # older releases have fewer
            setattr(torch._C, name, _routed(ours, theirs))
