"""`torch.utils.dlpack`: export tensors of simulated devices, as those of an extension device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

from simgpu._memory.storages import mark_exported
from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Patch, Row

_stock_dlpack: Any = torch.Tensor.__dlpack__
_stock_dlpack_device: Any = torch.Tensor.__dlpack_device__


def dlpack_device(self: torch.Tensor) -> Any:
    """`tensor.__dlpack_device__()`: an extension device, and its index."""
    if self.device.type != DEVICE_TYPE:
        return _stock_dlpack_device(self)
    return DLDeviceType.kDLExtDev, self.device.index


def _lent(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor to export in place of `tensor`: a detached alias of it.

    A capsule keeps a tensor alive and points into its memory. If it kept `tensor` itself, a later
    `tensor.set_()` would release that memory under the capsule.
    """
    if tensor.device.type != DEVICE_TYPE:
        return tensor
    mark_exported(tensor.untyped_storage())
    return tensor if tensor.requires_grad else tensor.detach()  # PyTorch refuses the former


def dlpack(self: torch.Tensor, **options: Any) -> Any:
    """`tensor.__dlpack__(...)`."""
    return _stock_dlpack(_lent(self), **options)


def to_dlpack(tensor: torch.Tensor) -> Any:
    """`torch.to_dlpack(tensor)`."""
    return torch._C._to_dlpack(_lent(tensor))


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch.Tensor",
        "__dlpack__",
        value=dlpack,
        why="the memory of a tensor that was exported has to outlive a resize of the tensor",
    ),
    Patch(
        "torch.Tensor",
        "__dlpack_device__",
        value=dlpack_device,
        why="PyTorch refuses device types that it has no DLPack number for",
    ),
    *(
        Patch(module, "to_dlpack", value=to_dlpack, why="the same, for the old function")
        for module in ("torch", "torch.utils.dlpack")
    ),
)
