"""`torch.accelerator` for simulated devices: the current device and streams.

Its C++ half asks the device guard, which knows one device only; here it asks `_world` and
`_streams` for as long as there are simulated devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu import _memory_functions, _streams, _world


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


_OURS: dict[str, Callable[..., Any]] = {
    "_accelerator_emptyCache": _memory_functions.empty_cache,
    "_accelerator_exchangeDevice": _exchange_device,
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


def install() -> None:
    """Put these in front of the C++ functions, which answer while there are no devices."""
    for name, ours in _OURS.items():
        theirs = getattr(torch._C, name, None)
        if theirs is not None:  # older releases have fewer
            setattr(torch._C, name, _routed(ours, theirs))
