"""Turn what a caller writes for a device into a torch.device, and find its device module.

The only file that turns what callers write (`0`, `"cuda:1"`, `torch.device("cuda", 1)`) into full
`torch.device` objects; everything else in this package carries those. A CPU device is always the
plain `torch.device("cpu")`: it has no index, no streams and nothing to be made current.

May import: `torch`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch

DeviceLike = int | str | torch.device

CPU = torch.device("cpu")

# Copies from pageable or pinned host memory go through these, one for each device, so that they
# can overlap with what the device is already doing.
_copy_streams: dict[tuple[torch.device, Any], Any] = {}
_copy_streams_lock = threading.Lock()


def _forget_streams() -> None:
    """In a forked child: it has none of its parent's streams, nor the thread that held the lock."""
    global _copy_streams_lock
    _copy_streams_lock = threading.Lock()
    _copy_streams.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_streams)


# By device type. No functools.cache: torch.compile warns of what it wraps.
_modules: dict[str, Any] = {}


def device_module(device_type: str) -> Any:
    """The module that serves a device type, such as `torch.cuda`."""
    module = _modules.get(device_type)
    if module is None:
        module = _modules[device_type] = torch.get_device_module(device_type)
    return module


def available_type() -> str | None:
    """Type of the accelerator whose devices can be used now, or None if there is none.

    The accelerator torch was built or extended for comes first; for a registered backend without
    devices CUDA is asked. One without streams (MPS) cannot run replicas side by side.
    """
    accelerator = torch.accelerator.current_accelerator()
    for device_type in (accelerator.type if accelerator is not None else "cuda", "cuda"):
        module = device_module(device_type)
        usable = module.is_available() and hasattr(module, "current_stream")
        if usable and module.device_count() > 0:
            return device_type
    return None


def accelerator_of(tensors: Iterable[torch.Tensor]) -> str | None:
    """Type of the first device that has any of `tensors`, or None: the CPU and "meta" are none."""
    types = (tensor.device.type for tensor in tensors)
    return next((kind for kind in types if kind not in ("cpu", "meta")), None)


def type_of(tensors: Iterable[torch.Tensor]) -> str:
    """The device type that integer ids mean next to `tensors`.

    It is that of the tensors (see `accelerator_of`), else the available accelerator.

    Raises:
        RuntimeError: none of them is on an accelerator, and none is available.
    """
    device_type = accelerator_of(tensors) or available_type()
    if device_type is None:
        raise RuntimeError(
            "an integer device id was given, but there is no accelerator whose devices it could "
            "number; pass torch.device objects instead"
        )
    return device_type


def resolve(device: DeviceLike, device_type: str) -> torch.device:
    """The full device that `device` names; integers count the devices of `device_type`.

    Raises:
        ValueError: a negative index.
        TypeError: something that names no device.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        if device < 0:
            raise ValueError(f"expected a non-negative device index, but got {device}")
        return CPU if device_type == "cpu" else torch.device(device_type, device)
    if type(device) is torch.device and device.index is not None and device.type != "cpu":
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if not isinstance(device, torch.device):
        raise TypeError(
            f"expected a device as torch.device, str or int, but got {device!r} "
            f"of type {type(device).__name__}"
        )
    if device.type == "cpu":
        return CPU
    if device.index is None:
        return torch.device(device.type, device_module(device.type).current_device())
    return device


def listed(devices: Sequence[DeviceLike]) -> list[DeviceLike]:
    """The devices as a list; raises TypeError for a single one, of which a text has letters."""
    if isinstance(devices, (str, torch.device, int)):
        raise TypeError(f"expected a sequence of devices, but got a single one: {devices!r}")
    return list(devices)


def resolve_all(
    devices: Sequence[DeviceLike], tensors: Iterable[torch.Tensor] = ()
) -> list[torch.device]:
    """The full devices that `devices` name, next to `tensors` (see `type_of`)."""
    devices = listed(devices)
    numbered = any(isinstance(device, int) for device in devices)
    device_type = type_of(tensors) if numbered else ""
    return [resolve(device, device_type) for device in devices]


def current_device(device_type: str) -> torch.device:
    """The calling thread's current device of a type."""
    if device_type == "cpu":
        return CPU
    return torch.device(device_type, device_module(device_type).current_device())


def current_stream(device: torch.device) -> Any:
    """The calling thread's current stream on `device`, or None for the CPU."""
    if device.type == "cpu":
        return None
    return device_module(device.type).current_stream(device)


def on_device(device: torch.device) -> Any:
    """Context in which `device` is current."""
    if device.type == "cpu":
        return contextlib.nullcontext()
    return device_module(device.type).device(device.index)


def on_stream(stream: Any) -> Any:
    """Context in which `stream` and its device are current; None changes nothing."""
    if stream is None:
        return contextlib.nullcontext()
    return device_module(stream.device.type).stream(stream)


def copy_stream(device: torch.device) -> Any:
    """The background stream on which chunks from the CPU reach `device`, or None for the CPU."""
    if device.type == "cpu":
        return None
    # The class belongs to the key: another backend may have had devices of the same name before.
    stream_class = device_module(device.type).Stream
    key = device, stream_class
    stream = _copy_streams.get(key)
    if stream is None:
        with _copy_streams_lock:
            stream = _copy_streams.get(key)
            if stream is None:
                stream = _copy_streams[key] = stream_class(device=device)
    return stream
