"""Kernel of `Tensor.is_set_to`: whether two tensors are the same view of the same storage.

It cannot be computed on host aliases, which have storages of their own.
"""

from __future__ import annotations

import torch

from simgpu._kernels.arguments import Arguments
from simgpu._memory.host_aliases import on_one_storage

_ARGUMENTS = Arguments(torch.ops.aten.is_set_to.default)


def is_set_to(self: torch.Tensor, tensor: torch.Tensor) -> bool:
    """`self.is_set_to(tensor)`; raises DeviceMismatchError where they lie on different devices."""
    _ARGUMENTS.read((self, tensor), {})
    return (
        on_one_storage(self, tensor)
        and self.storage_offset() == tensor.storage_offset()
        and self.shape == tensor.shape
        and self.stride() == tensor.stride()
    )
