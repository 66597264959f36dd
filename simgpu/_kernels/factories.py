"""Kernels for operators with a `device` argument: `empty`, `arange`, `zeros_like`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from simgpu._kernels.arguments import Arguments
from simgpu._kernels.overloads import PythonKernel
from simgpu._kernels.schema import Schema
from simgpu._memory import pinned
from simgpu._memory.ownership import MANY, adopt, make_sure_of_room
from simgpu._runtime import world
from simgpu._runtime.charging import charge
from simgpu._runtime.launch import HOST_KEYS, Kernel, launch

_CPU = torch.device("cpu")


def factory_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Operators that make a tensor: on the device asked for, or where the input lies."""
    takes_tensors = Schema(kernel.op).takes_tensors()

    def run(
        *args: Any,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        source = -1
        host_args: Sequence[Any] = args
        host_kwargs = kwargs
        if takes_tensors:
            source, host_args, host_kwargs = reader.read(args, kwargs)
        host_kwargs["device"] = _CPU
        if device is not None and _is_elsewhere(device):
            host_kwargs["device"] = device
            return _made_on_host(kernel, host_args, host_kwargs, pin_memory)
        pinned.check_not_wanted(pin_memory)
        index = source if device is None and source >= 0 else world.resolve(device)
        _look_for_room(kernel, index, args, host_kwargs)
        return adopt(launch(kernel, index, host_args, host_kwargs), index)

    return run


def _is_elsewhere(device: torch.device) -> bool:
    """Whether a tensor on `device` is none of a simulated one's: on the CPU, or without data."""
    return device.type in ("cpu", "meta")


def _look_for_room(kernel: Kernel, index: int, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise OutOfMemoryError before numbers are made for which there is no room."""
    first = args[0] if args else None
    if isinstance(first, (list, tuple)):
        make_sure_of_room(index, first, kwargs.get("dtype"))
    elif isinstance(first, torch.Tensor):
        size = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else first.shape
        if math.prod(size) > MANY:  # `new_zeros` has the size second, `zeros_like` has none
            make_sure_of_room(index, size, kwargs.get("dtype") or first.dtype)
    elif any(type(value) in (int, float) and value > MANY for value in args):
        held = charge(kernel.op, world.device(index), args, kwargs)
        if held is not None:
            held.release(())


def _made_on_host(
    kernel: Kernel, args: Sequence[Any], kwargs: dict[str, Any], pin_memory: bool | None
) -> torch.Tensor:
    """A tensor of the host, made like one of a device: no device has anything to do."""
    host: torch.Tensor = kernel.run(HOST_KEYS, *args, **kwargs)
    return pinned.mark_result(host) if pin_memory else host
