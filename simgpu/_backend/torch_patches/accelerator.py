"""`torch.accelerator` on simulated devices: current device, streams and memory.

Its functions call C++, which asks the device guard, and a guard written in Python reports one
device only. So the C++ functions are replaced by ones that ask `simgpu._runtime` for as long as
there are simulated devices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from simgpu._backend.device_module import memory
from simgpu._backend.tensor_types import DTYPES
from simgpu._backend.torch_patches.routing import routed
from simgpu._patches import Action, Patch, Patches, Row, find_owner
from simgpu._runtime import accelerators, streams, world


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
    "_accelerator_exchangeDevice": world.exchange_device,
    "_accelerator_getDeviceCapability": _capability,
    "_accelerator_getDeviceIndex": world.current_device,
    "_accelerator_getDeviceStats": memory.memory_stats,
    "_accelerator_getMemoryInfo": memory.mem_get_info,
    "_accelerator_getStream": streams.current_stream,
    "_accelerator_isAllocatorInitialized": lambda: True,
    "_accelerator_maybeExchangeDevice": world.exchange_device,
    "_accelerator_resetAccumulatedStats": memory.reset_accumulated_memory_stats,
    "_accelerator_resetPeakStats": memory.reset_peak_memory_stats,
    "_accelerator_setDeviceIndex": _set_device,
    "_accelerator_setStream": _set_stream,
    "_accelerator_synchronizeDevice": world.synchronize,
}


def _stream_of(device: torch.device) -> torch.Stream:
    """What compiled code asks for; in C++ since 2.15, which does not know the name "cuda"."""
    return torch.accelerator.current_stream(device)


def _replace_in_compiler(_: Patches) -> None:
    """Let modules of the compiler that took the function by name have ours."""
    ours = getattr(find_owner(_COMPILER), _STREAM, None)
    for name in ("torch._dynamo.utils", "torch._dynamo.guards"):
        module = sys.modules.get(name)
        if module is not None and ours is not None:
            setattr(module, _STREAM, ours)


_COMPILER = "torch._C._dynamo.utils"
_STREAM = "get_current_stream"

PATCHES: tuple[Row, ...] = (
    *(
        Patch(
            "torch._C",
            name,
            wrap=routed(ours, accelerators.is_simulated),
            needs=name,
            why="torch.accelerator asks these, and PyTorch's own know no device but simgpu:0",
        )
        for name, ours in _OURS.items()
    ),
    Patch(
        _COMPILER,
        _STREAM,
        wrap=routed(_stream_of, accelerators.is_simulated),
        needs=_STREAM,
        why="compiled code asks it, by the name that the device has for the program",
    ),
    Action(
        "`get_current_stream` in modules of torch._dynamo that have been imported",
        run=_replace_in_compiler,
        why="they have taken it from torch._C by name",
    ),
)
