"""`torch.Stream`, `torch.Event` and `torch.accelerator` for simulated devices."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from simgpu._backend import namespace
from simgpu._backend.namespace.on_demand import DTYPES
from simgpu._backend.torch_patches.routing import routed
from simgpu._core import streams, world
from simgpu._core.streams import Event, Stream
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import ClassProxy, Patches, Table, copy_identity, find_owner

PATCHES = Table()

_StockStream: Any = torch.Stream
_StockEvent: Any = torch.Event


def _is_ours(device: Any) -> bool:
    """Whether `torch.Stream(device)` is to be one of a simulated device.

    No device and a bare index mean the accelerator: simulated devices, if there are any.
    """
    if device is None or isinstance(device, int):
        return world.is_simulated()
    return torch.device(device).type == DEVICE_TYPE


@PATCHES.replace(
    "torch.Stream",
    why="C++ asks the device guard for a stream, and makes none but simgpu:0's default one",
)
class GenericStream(_StockStream, metaclass=ClassProxy):  # type: ignore[misc]
    """The proxy of `torch.Stream`; C++ can make only simgpu:0's default stream."""

    _stock = _StockStream

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        device = args[0] if args else kwargs.get("device")
        by_number = len(args) == 3 or "stream_id" in kwargs
        if cls is GenericStream and not by_number and _is_ours(device):
            return Stream(device, kwargs.get("priority", 0))
        made = _StockStream.__new__(_StockStream if cls is GenericStream else cls, *args, **kwargs)
        if cls is GenericStream and made.device.type == DEVICE_TYPE:
            return Stream(made.device_index, stream_id=made.stream_id)
        return made


@PATCHES.replace(
    "torch.Event",
    why="C++ asks the device guard to record an event, which a guard in Python cannot do",
)
class GenericEvent(_StockEvent, metaclass=ClassProxy):  # type: ignore[misc]
    """The proxy of `torch.Event`; C++ makes events whose `record` does nothing here."""

    _stock = _StockEvent

    def __new__(cls, device: Any = None, **kwargs: Any) -> Any:
        if cls is GenericEvent and _is_ours(device):
            made = Event(**kwargs)
            made._unrecorded_device = torch.device(DEVICE_TYPE)
            return made
        return _StockEvent.__new__(_StockEvent if cls is GenericEvent else cls, device, **kwargs)


copy_identity(GenericStream, _StockStream)
copy_identity(GenericEvent, _StockEvent)


# `torch.accelerator` on simulated devices: current device, streams and memory.
#
# Its functions call C++, which asks the device guard, and a guard written in Python reports one
# device only. So the C++ functions are replaced by ones that ask `simgpu._core` for as long as
# there are simulated devices.


def _set_device(index: int) -> None:
    world.initialize()
    world.set_current_device(index)


def _set_stream(stream: torch.Stream) -> None:
    world.set_current_device(stream.device_index)
    streams.set_stream(stream)


def _capability(index: int) -> dict[str, Any]:
    world.device(index)
    return {"supported_dtypes": set(DTYPES.values())}


_OURS: dict[str, Callable[..., Any]] = {
    "_accelerator_emptyCache": namespace.empty_cache,
    # Nothing is cached: pinned memory goes back to the host when its tensor does.
    "_accelerator_emptyHostCache": lambda: None,
    "_accelerator_exchangeDevice": world.exchange_device,
    "_accelerator_getDeviceCapability": _capability,
    "_accelerator_getDeviceIndex": namespace.current_device,
    "_accelerator_getDeviceStats": namespace.memory_stats,
    "_accelerator_getMemoryInfo": namespace.mem_get_info,
    "_accelerator_getStream": namespace.current_stream,
    "_accelerator_hooks_device_count": namespace.device_count,
    "_accelerator_hooks_get_current_device": namespace.current_device,
    "_accelerator_isAllocatorInitialized": namespace.is_initialized,
    "_accelerator_maybeExchangeDevice": world.exchange_device,
    "_accelerator_resetAccumulatedStats": namespace.reset_accumulated_memory_stats,
    "_accelerator_resetPeakStats": namespace.reset_peak_memory_stats,
    "_accelerator_setDeviceIndex": _set_device,
    "_accelerator_setStream": _set_stream,
    "_accelerator_synchronizeDevice": namespace.synchronize,
}


for _name, _ours in _OURS.items():
    PATCHES.add(
        f"torch._C.{_name}",
        wrap=routed(_ours, world.is_simulated),
        optional=True,
        why="torch.accelerator asks these, and PyTorch's own know no device but simgpu:0",
    )

_COMPILER = "torch._C._dynamo.utils"
_STREAM = "get_current_stream"


def _stream_of(device: torch.device) -> torch.Stream:
    """What compiled code asks for; in C++ since 2.15, which does not know the name "cuda"."""
    return torch.accelerator.current_stream(device)


PATCHES.add(
    f"{_COMPILER}.{_STREAM}",
    wrap=routed(_stream_of, world.is_simulated),
    optional=True,
    why="compiled code asks it, by the name that the device has for the program",
)


@PATCHES.action(
    "`get_current_stream` in modules of torch._dynamo that have been imported",
    why="they have taken it from torch._C by name",
)
def _replace_in_compiler(_: Patches) -> None:
    """Make modules of the compiler that took the function by name have ours."""
    ours = getattr(find_owner(_COMPILER), _STREAM, None)
    for name in ("torch._dynamo.utils", "torch._dynamo.guards"):
        module = sys.modules.get(name)
        if module is not None and ours is not None:
            setattr(module, _STREAM, ours)


@PATCHES.around(
    "torch.autograd.profiler.profile.__exit__",
    why="it waits for the device, also where there is none",
)
def _end_profile(stock: Callable[..., Any], self: Any, *error: Any) -> Any:
    """`profile.__exit__`: PyTorch profiles any device type that was registered in the process."""
    if self.use_device == DEVICE_TYPE and not world.device_count():
        self.use_device = None
    return stock(self, *error)
