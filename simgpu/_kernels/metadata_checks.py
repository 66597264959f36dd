"""Kernel of `_assert_tensor_metadata`, which exported programs call before they convert."""

from __future__ import annotations

from typing import Any

import torch

from simgpu import _naming
from simgpu._kernels.overloads import overload
from simgpu._runtime.launch import HOST_KEYS

# PyTorch's own code for this operator is the same under every key, and reads no memory.
_check = overload("_assert_tensor_metadata")._handle.redispatch_boxed


def assert_tensor_metadata(
    tensor: torch.Tensor, *expected: Any, device: torch.device | None = None, **others: Any
) -> None:
    """Raise RuntimeError unless `tensor` is as expected; its device may go by CUDA's name."""
    if device is not None and device.type in _naming.names:
        number = "" if device.index is None else f":{device.index}"
        device = torch.device(f"{_naming.DEVICE_TYPE}{number}")
    _check(HOST_KEYS, tensor, *expected, device=device, **others)
