"""`torch.Stream` and `torch.Event`: let them make those of simulated devices."""

from __future__ import annotations

from typing import Any

import torch

from simgpu._class_proxies import ClassProxy, copy_identity
from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import world as runtime_world
from simgpu._runtime.streams import Event, Stream

_StockStream: Any = torch.Stream
_StockEvent: Any = torch.Event


def _is_ours(device: Any) -> bool:
    """Whether a generic stream or event is one of a simulated device: without a device, if any."""
    if device is None or isinstance(device, int):
        return bool(runtime_world.active_devices)
    return torch.device(device).type == DEVICE_TYPE


class GenericStream(_StockStream, metaclass=ClassProxy):  # type: ignore[misc]
    """Stands in for `torch.Stream`, of which C++ makes the default one of device 0 only."""

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


class GenericEvent(_StockEvent, metaclass=ClassProxy):  # type: ignore[misc]
    """Stands in for `torch.Event`, of which C++ makes one that nobody records."""

    _stock = _StockEvent

    def __new__(cls, device: Any = None, **kwargs: Any) -> Any:
        if cls is GenericEvent and _is_ours(device):
            made = Event(**kwargs)
            made._unrecorded_device = torch.device(DEVICE_TYPE)
            return made
        return _StockEvent.__new__(_StockEvent if cls is GenericEvent else cls, device, **kwargs)


copy_identity(GenericStream, _StockStream)
copy_identity(GenericEvent, _StockEvent)


def install() -> None:
    """Let `torch.Stream` and `torch.Event` know the device type."""
    torch.Stream = GenericStream  # type: ignore[misc]
    torch.Event = GenericEvent  # type: ignore[misc]
