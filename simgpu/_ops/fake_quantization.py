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

from simgpu._ops.calls import overload
from simgpu._ops.checks import moving_average
from simgpu._ops.from_schema import device_kernel

Tensor = torch.Tensor


_OBSERVER = overload("_fused_moving_avg_obs_fq_helper")
_observe = device_kernel(_OBSERVER)


def fused_observer(
    self: Tensor,
    observer_on: Tensor,
    fake_quant_on: Tensor,
    running_min: Tensor,
    running_max: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    averaging_const: float,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> Any:
    """`torch.fused_moving_avg_obs_fake_quant` without autograd: the quantized, and its mask."""
    if per_row_fake_quant and running_min.numel() == 0 and ch_axis < self.dim():
        channels = self.shape[ch_axis]
        running_min.resize_(channels).fill_(math.inf)
        running_max.resize_(channels).fill_(-math.inf)
        scale.resize_(channels)
        zero_point.resize_(channels)
    buffers = {
        "running_min": running_min,
        "running_max": running_max,
        "scale": scale,
        "zero_point": zero_point,
    }
    moving_average(self, ch_axis, per_row_fake_quant, buffers)
    return _observe(
        self,
        observer_on,
        fake_quant_on,
        running_min,
        running_max,
        scale,
        zero_point,
        averaging_const,
        quant_min,
        quant_max,
        ch_axis,
        per_row_fake_quant,
        symmetric_quant,
    )
