"""`Tensor.__dlpack__`: lets tensors of simulated devices be exported."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

from simgpu._memory.storages import mark_exported
from simgpu._naming import DEVICE_TYPE

_stock_dlpack: Any = torch.Tensor.__dlpack__
_stock_dlpack_device: Any = torch.Tensor.__dlpack_device__


def dlpack_device(self: torch.Tensor) -> Any:
    """`tensor.__dlpack_device__()`: an extension device, and its index."""
    if self.device.type != DEVICE_TYPE:
        return _stock_dlpack_device(self)
    return DLDeviceType.kDLExtDev, self.device.index


def _lent(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as DLPack may have it.

    A capsule points into the memory of the tensor that it keeps: that has to be one which nobody
    can put on other memory.
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


def install() -> None:
    """Let tensors of simulated devices be exported."""
    tensor_type: Any = torch.Tensor
    tensor_type.__dlpack__ = dlpack
    tensor_type.__dlpack_device__ = dlpack_device
    for module in (torch, torch.utils.dlpack):
        setattr(module, "to_dlpack", to_dlpack)  # noqa: B010  # neither module declares it
