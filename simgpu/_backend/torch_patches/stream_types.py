"""`torch.Stream` and `torch.Event`: make streams and events of simulated devices."""

from __future__ import annotations

from typing import Any

import torch

from simgpu._class_proxies import ClassProxy, copy_identity
from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Patch, Row
from simgpu._runtime import accelerators
from simgpu._runtime.events import Event
from simgpu._runtime.streams import Stream

_StockStream: Any = torch.Stream
_StockEvent: Any = torch.Event


def _is_ours(device: Any) -> bool:
    """Whether `torch.Stream(device)` is to be one of a simulated device.

    No device and a bare index mean the accelerator: simulated devices, if there are any.
    """
    if device is None or isinstance(device, int):
        return accelerators.is_simulated()
    return torch.device(device).type == DEVICE_TYPE


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


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch",
        "Stream",
        value=GenericStream,
        why="C++ asks the device guard for a stream, and makes none but simgpu:0's default one",
    ),
    Patch(
        "torch",
        "Event",
        value=GenericEvent,
        why="C++ asks the device guard to record an event, which a guard in Python cannot do",
    ),
)
