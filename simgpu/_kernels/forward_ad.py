"""Forward-mode AD: the layout that a tangent must have, and here its device too.

`y.copy_(x)` hands the tangent of `x` on as it is (torch/csrc/autograd/VariableTypeManual.cpp,
copy_), on the device of `x`. Before PyTorch keeps a tangent, it asks whether it is laid out like
its tensor, and if not makes a copy that is: the answers here send the tangent after its tensor.
"""

from __future__ import annotations

import torch

from simgpu._kernels.overloads import overload
from simgpu._runtime.launch import HOST_KEYS

Tensor = torch.Tensor
_same_numel = overload("_has_same_storage_numel")._handle.redispatch_boxed
_new_zeros = overload("_new_zeros_with_same_feature_meta")._handle.redispatch_boxed


def has_same_storage_numel(self: Tensor, other: Tensor) -> bool:
    """Whether `other`, a tangent, may stay as it is: no, if it lies on another device."""
    return self.device == other.device and _same_numel(HOST_KEYS, self, other)


def new_zeros_with_same_feature_meta(
    self: Tensor, other: Tensor, *, self_num_batch_dims: int = 0
) -> Tensor:
    """Zeros for the tangent `self`, laid out like its tensor `other` and on its device."""
    if self.device != other.device:
        self = torch.empty_like(self, device=other.device)
    zeros: Tensor = _new_zeros(HOST_KEYS, self, other, self_num_batch_dims=self_num_batch_dims)
    return zeros
