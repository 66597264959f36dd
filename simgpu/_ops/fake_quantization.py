"""The fused observer of quantization-aware training, which makes room for its channels.

A module that observes channels cannot know how many there will be, so it begins with empty buffers
for their ranges, and the first call resizes them. Memory under a host alias cannot grow: here the
buffers of the device do, before the host's kernel fills them.

Source: fused_moving_avg_obs_fake_quant_cuda in PyTorch's
aten/src/ATen/native/quantized/cuda/FusedObsFakeQuant.cu.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from simgpu._ops.from_schema import device_kernel
from simgpu._ops.table import PythonKernel, row

Tensor = torch.Tensor
_NAMES = ("running_min", "running_max", "scale", "zero_point")


def _fused_observer(observer: torch._ops.OpOverload) -> PythonKernel:
    """`torch.fused_moving_avg_obs_fake_quant` without autograd: the quantized, and its mask."""
    observe = device_kernel(observer)

    def run(self: Tensor, observer_on: Tensor, fake_quant_on: Tensor, *given: Any) -> Any:
        buffers, dim = dict(zip(_NAMES, given[:4], strict=True)), given[7]
        per_row = len(given) > 8 and given[8]
        if dim >= self.dim():
            return observe(self, observer_on, fake_quant_on, *given)  # which says so
        ranges = self.shape[dim] if per_row else 1
        if per_row and given[0].numel() == 0:
            for name, unset in (("running_min", math.inf), ("running_max", -math.inf)):
                buffers[name].resize_(ranges).fill_(unset)
            for name in ("scale", "zero_point"):
                buffers[name].resize_(ranges)
        for name, buffer in buffers.items():
            if buffer.numel() < ranges:
                raise RuntimeError(
                    f"_fused_moving_avg_obs_fq_helper: expected {name} of {ranges} numbers, one "
                    f"for each range, got shape {tuple(buffer.shape)}"
                )
        return observe(self, observer_on, fake_quant_on, *given)

    return run


row("_fused_moving_avg_obs_fq_helper", make=_fused_observer)
