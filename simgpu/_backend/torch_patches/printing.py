"""Printing tensors that have outlived their devices: no kernel can run, but a copy to the host can.

So that a notebook, or the report of a failed assertion, shows what `with simgpu.devices(n)` left.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Patch, Row
from simgpu._runtime import world

_stock: Any = torch._tensor_str._tensor_str


def _tensor_str(self: torch.Tensor, indent: int) -> str:
    """The numbers of a tensor, which PyTorch formats by kernels of its device."""
    device = self.device
    if device.type == DEVICE_TYPE and device.index >= world.device_count():
        self = _on_host(self)
    text: str = _stock(self, indent)
    return text


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy. A view that is conjugated or negated takes a kernel to copy: its base takes none."""
    if tensor.is_conj():
        return _on_host(torch._conj(tensor)).conj()
    if tensor.is_neg():
        return torch._neg_view(_on_host(torch._neg_view(tensor)))
    return tensor.cpu()


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch._tensor_str",
        "_tensor_str",
        value=_tensor_str,
        why="a tensor whose device is gone can be copied to the host, and so can be printed",
    ),
)
