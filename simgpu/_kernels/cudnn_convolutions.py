"""Convolutions by the names of cuDNN's operators: `torch.cudnn_convolution` and its kin.

PyTorch has kernels for them where it is built with CUDA. They compute what `torch.convolution`
does; `benchmark`, `deterministic` and `allow_tf32` choose among algorithms of cuDNN.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from simgpu._kernels.general import computed_kernel
from simgpu._kernels.overloads import PythonKernel, overload

Tensor = torch.Tensor


def _zeros(stride: Sequence[int]) -> list[int]:
    return [0] * len(stride)


def cudnn_convolution(
    x: Tensor,
    weight: Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
) -> Tensor:
    """A convolution without a bias."""
    return torch.convolution(
        x, weight, None, stride, padding, dilation, False, _zeros(stride), groups
    )


def cudnn_convolution_transpose(
    x: Tensor,
    weight: Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
) -> Tensor:
    """A transposed convolution without a bias."""
    return torch.convolution(
        x, weight, None, stride, padding, dilation, True, output_padding, groups
    )


def cudnn_convolution_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The positive part of a convolution."""
    return torch.convolution(
        x, weight, bias, stride, padding, dilation, False, _zeros(stride), groups
    ).relu_()


def cudnn_convolution_add_relu(
    x: Tensor,
    weight: Tensor,
    z: Tensor,
    alpha: float | None,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The positive part of a convolution and `alpha` (1 if None) times `z`."""
    y = torch.convolution(x, weight, bias, stride, padding, dilation, False, _zeros(stride), groups)
    return y.add_(z, alpha=1 if alpha is None else alpha).relu_()


KERNELS: dict[str, PythonKernel] = {
    function.__name__: computed_kernel(overload(function.__name__), function)
    for function in (
        cudnn_convolution,
        cudnn_convolution_transpose,
        cudnn_convolution_relu,
        cudnn_convolution_add_relu,
    )
}
