"""Kernel of `Tensor.is_set_to`: whether two tensors are the same view of the same storage.

It cannot be computed on host aliases, which have storages of their own.
"""

from __future__ import annotations

import torch

from simgpu._memory.host_aliases import on_one_storage


def is_set_to(self: torch.Tensor, tensor: torch.Tensor) -> bool:
    """`self.is_set_to(tensor)`, which is False where they lie on different devices."""
    return (
        self.device == tensor.device
        and on_one_storage(self, tensor)
        and self.storage_offset() == tensor.storage_offset()
        and self.shape == tensor.shape
        and self.stride() == tensor.stride()
    )
