"""Kernels of SyncBatchNorm, and the rules of CUDA's `rms_norm`.

Each rank finds mean and inverse standard deviation of its rows, all ranks' are put together by
their counts, and the backward pass adds two sums over ranks in between. Statistics of half
precision are in float32, as on CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from simgpu._core.launch import HOST_KEYS
from simgpu._ops.calls import DeviceRules, PythonKernel, overload
from simgpu._ops.dtypes import no_kernel
from simgpu._ops.from_schema import computed_kernel

Tensor = torch.Tensor


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.half, torch.bfloat16) else x


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _along_channels(values: Tensor, x: Tensor) -> Tensor:
    """One number per channel, shaped to be broadcast over `x`."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse standard deviation of each channel."""
    wide = _wide(x)
    var, mean = torch.var_mean(wide, _all_but_channels(x), correction=0)
    return mean, (var + eps).rsqrt()


def batch_norm_gather_stats_with_counts(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Statistics of all ranks' rows, from those of each rank (one row per rank)."""
    weight = counts.to(mean.dtype).view(-1, 1)
    total = weight.sum()
    together = (mean * weight).sum(0) / total
    var = ((invstd**-2 - eps + (mean - together) ** 2) * weight).sum(0) / total
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(together * momentum)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(var * (total / (total - 1)) * momentum)
    return together, (var + eps).rsqrt()


def batch_norm_gather_stats(
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[Tensor, Tensor]:
    """The same where every rank has as many elements per channel."""
    counts = mean.new_full((len(mean),), count)
    return batch_norm_gather_stats_with_counts(
        x, mean, invstd, running_mean, running_var, momentum, eps, counts
    )


def batch_norm_elemt(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    eps: float,
) -> Tensor:
    """The normalized rows."""
    y = (_wide(x) - _along_channels(mean, x)) * _along_channels(invstd, x)
    if weight is not None:
        y = y * _along_channels(weight, x)
    if bias is not None:
        y = y + _along_channels(bias, x)
    return y.to(x.dtype)


def batch_norm_backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """This rank's sums over its rows, and its gradients of weight and bias."""
    wide, dims = _wide(grad), _all_but_channels(x)
    sum_dy = wide.sum(dims)
    sum_dy_xmu = (wide * (_wide(x) - _along_channels(mean, x))).sum(dims)
    dtype = sum_dy.dtype if weight is None else weight.dtype
    none = sum_dy.new_empty(0)
    grad_weight = (sum_dy_xmu * invstd).to(dtype) if weight_g else none
    grad_bias = sum_dy.clone().to(dtype) if bias_g else none
    return sum_dy, sum_dy_xmu, grad_weight, grad_bias


def batch_norm_backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    count: Tensor,
) -> Tensor:
    """The gradient of this rank's rows, from the sums over all ranks."""
    rows = count.sum().to(mean.dtype)
    centered = _wide(x) - _along_channels(mean, x)
    slope = _along_channels(invstd**2 * sum_dy_xmu / rows, x)
    scale = _along_channels(invstd if weight is None else invstd * weight, x)
    out = (_wide(grad) - _along_channels(sum_dy / rows, x) - centered * slope) * scale
    return out.to(grad.dtype)


KERNELS: dict[str, PythonKernel] = {
    function.__name__: computed_kernel(overload(function.__name__), function)
    for function in (
        batch_norm_stats,
        batch_norm_gather_stats,
        batch_norm_gather_stats_with_counts,
        batch_norm_elemt,
        batch_norm_backward_reduce,
        batch_norm_backward_elemt,
    )
}


# What CUDA's kernel of `rms_norm` asks of devices and dtypes, in front of PyTorch's composite.
#
# CUDA has one kernel (`_fused_rms_norm`, ATen/native/cuda/layer_norm_kernel.cu), which is used
# where the input and its weight are of one dtype. Elsewhere PyTorch composes it of other operators.

_compose = partial(overload("rms_norm")._handle.redispatch_boxed, HOST_KEYS)


def rms_norm(
    _: torch._C.DispatchKeySet,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """`torch.nn.functional.rms_norm`; raises DeviceMismatchError and NotImplementedError as CUDA.

    Shapes are checked by PyTorch's composite.
    """
    shape = tuple(normalized_shape)
    fits = tuple(input.shape[-len(shape) :]) == shape and (weight is None or weight.shape == shape)
    fused = fits and (weight is None or weight.dtype == input.dtype)
    if fused and weight is not None and weight.device != input.device:
        rules = DeviceRules(overload("_fused_rms_norm"))
        rules.device_of_mixed_tensors((input, shape, weight, eps), {})
    if fused and not (input.is_floating_point() or input.is_complex()):
        if input.numel():
            raise no_kernel("LayerNormKernelImpl", input.dtype)
        return torch.empty_like(input)
    normalized: Tensor = _compose(input, normalized_shape, weight, eps)
    return normalized


# The fused kernel is there since a release.
RMS_NORM = {"rms_norm": rms_norm} if hasattr(torch.ops.aten, "_fused_rms_norm") else {}
