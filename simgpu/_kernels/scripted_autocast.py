"""Autocast within a script: the two operators that TorchScript puts before what it casts.

`with torch.autocast("cuda")` in a scripted function is known when it is compiled. PyTorch's own
code for the two asks whether a tensor is on CUDA; a simulated device does what CUDA does.
"""

from __future__ import annotations

from typing import Any

import torch

Tensor = torch.Tensor
_LOWER = (torch.float16, torch.bfloat16)


def to_reduced_precision(
    _: torch._C.DispatchKeySet,
    tensor: Tensor,
    cuda_enabled: bool,
    cpu_enabled: bool,
    cuda_dtype: torch.dtype,
    *others: Any,
) -> Tensor:
    """`aten::_autocast_to_reduced_precision`: float32 becomes the dtype that was asked for."""
    return tensor.to(cuda_dtype) if cuda_enabled and tensor.dtype is torch.float32 else tensor


def to_full_precision(
    _: torch._C.DispatchKeySet, tensor: Tensor, cuda_enabled: bool, *others: Any
) -> Tensor:
    """`aten::_autocast_to_full_precision`: halves become float32."""
    return tensor.float() if cuda_enabled and tensor.dtype in _LOWER else tensor
