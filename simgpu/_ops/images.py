"""Pooling, upsampling, padding and sampling of images: their rows and checks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from simgpu._native.relabel import host_alias
from simgpu._ops.dtypes import FLOATING, HALVES, INTEGERS_AS_DOUBLES, Only, Wider
from simgpu._ops.rules import expect, outside, reads_values, refuse
from simgpu._ops.table import HostCode, Keys, row

Tensor = torch.Tensor

# CUDA composes these of views and a copy.
row("native_channel_shuffle", "pixel_shuffle", "pixel_unshuffle", kind="pytorch")


# Pooling


def avg_pool_backward(arguments: dict[str, Any], adaptive: int = 0) -> None:
    """As many images and channels in the gradient as in the input; the kernel looks at neither.

    `adaptive` is the number of dimensions that an adaptive operator pools.
    """
    grad, input = arguments["grad_output"], arguments["self"]
    dims = adaptive or len(arguments["kernel_size"])
    fits = grad.dim() == input.dim() and grad.shape[:-dims] == input.shape[:-dims]
    if not fits or (adaptive and 0 in input.shape[-dims:]):
        raise RuntimeError(
            f"the gradient of {'adaptive_' if adaptive else ''}avg_pool{dims}d, of shape "
            f"{tuple(grad.shape)}, does not go with an input of shape {tuple(input.shape)}"
        )


@reads_values
def pooled_indices(arguments: dict[str, Any], dims: int) -> None:
    """Indices of maxima are in the plane (`dims` is 2) or block (3) that was pooled."""
    input: Tensor = arguments["input"] if "input" in arguments else arguments["self"]
    grad, indices = arguments["grad_output"], arguments["indices"]
    size = math.prod(input.shape[-dims:])
    fits = grad.shape == indices.shape and indices.shape[:-dims] == input.shape[:-dims]
    wrong = outside(host_alias(indices), 0, size - 1)
    if not fits or wrong is not None:
        found = f"of shape {tuple(indices.shape)}" if wrong is None else f"{wrong} among them"
        raise RuntimeError(
            f"indices must be places from 0 to {size - 1} in an input of shape "
            f"{tuple(input.shape)}, one for each element of grad_output {tuple(grad.shape)}, got "
            f"{found}"
        )


def _unpooled(stock: HostCode, keys: Keys, self: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`max_unpool2d`, `max_unpool3d`: numbers are moved, integers of 64 bits as they are."""
    if self.dtype not in INTEGERS_AS_DOUBLES or kwargs:
        return stock(keys, self, *args, **kwargs)
    with torch._C.DisableTorchFunction():
        if self.dtype is torch.int64:
            return stock(keys, self.view(torch.float64), *args).view(self.dtype)
        return stock(keys, self.to(torch.float64), *args).to(self.dtype)


for _dims in (2, 3):
    _name = f"_adaptive_avg_pool{_dims}d_backward"
    row(
        _name,
        checks=(partial(avg_pool_backward, adaptive=_dims),),
        nondeterministic=(f"{_name[1:]}_cuda", None),
    )
    row(f"adaptive_max_pool{_dims}d", none_if_empty=True)
    row(
        f"adaptive_max_pool{_dims}d_backward",
        f"max_pool{_dims}d_with_indices_backward",
        checks=(partial(pooled_indices, dims=_dims),),
    )
    row(f"max_unpool{_dims}d", host=_unpooled)
for _name in (
    *("adaptive_max_pool2d_backward", "fractional_max_pool2d_backward"),
    *("fractional_max_pool3d_backward", "max_pool3d_with_indices_backward"),
):
    row(_name, nondeterministic=(f"{_name}_cuda", None))
row("_adaptive_avg_pool3d", none_if_empty=True)
row("avg_pool2d", dtypes=Only(FLOATING, "avg_pool2d_out_cuda_frame"), none_if_empty=True)
row("avg_pool3d", dtypes=Only(FLOATING, "avg_pool3d_out_cuda"), wider=Wider(HALVES))
row("avg_pool2d_backward", checks=(avg_pool_backward,))
row(
    "avg_pool3d_backward",
    checks=(avg_pool_backward,),
    wider=Wider(HALVES),
    nondeterministic=("avg_pool3d_backward_cuda", None),
)
row(
    "max_pool2d_with_indices",
    dtypes=Only(FLOATING, "max_pool2d_with_indices_out_cuda_frame"),
    none_if_empty=True,
)
row(
    "max_pool3d_with_indices",
    dtypes=Only(FLOATING, "max_pool3d_with_indices_out_frame"),
    none_if_empty=True,
)
row("max_unpool2d", wrong_on_meta=True)


# Upsampling

_SHARED = 48 * 1024  # bytes of shared memory that a block of threads has without asking
_LANES = 32


def antialiased(arguments: dict[str, Any], taps: int) -> None:
    """A scale whose weights a block has room for (native/cuda/UpSampleBilinear2d.cu, aa).

    `taps` is the width of the filter: 2 for bilinear, 4 for bicubic interpolation.
    """
    input: Tensor = arguments["self"]
    if input.dim() != 4 or not input.numel() or not all(arguments["output_size"]):
        return  # the kernel says so
    rows, columns = (
        1 + 2 * math.ceil(taps / 2 * max(_scale(arguments, dim), 1.0)) for dim in (0, 1)
    )
    needed = (columns * _LANES + rows * (_LANES + 1)) * input.itemsize
    if needed > _SHARED:
        raise RuntimeError(
            "Provided interpolation parameters can not be handled with current algorithm "
            "implementation. Please reduce the scale factor. Too much shared memory required: "
            f"{needed} vs {_SHARED}"
        )


def _scale(arguments: dict[str, Any], dim: int) -> float:
    """How many rows (`dim` is 0) or columns of the input make one of the output."""
    old, new = arguments["self"].shape[2 + dim], arguments["output_size"][dim]
    if arguments["align_corners"]:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    given: float | None = arguments.get(("scales_h", "scales_w")[dim])
    return float(1 / given if given else old / new)


for _kind, _taps in (("bilinear", 2), ("bicubic", 4)):
    _rule = Only(FLOATING, f"upsample_{_kind}2d_out_frame")
    row(f"upsample_{_kind}2d", dtypes=_rule)
    row(
        f"_upsample_{_kind}2d_aa",
        checks=(partial(antialiased, taps=_taps),),
        dtypes=_rule,
        wider=Wider(HALVES),
    )
    row(
        f"_upsample_{_kind}2d_aa_backward",
        wider=Wider(HALVES),
        nondeterministic=(f"upsample_{_kind}2d_aa_backward_out_cuda", None),
    )
for _name in (
    *("upsample_bicubic2d_backward", "upsample_bilinear2d_backward"),
    *("upsample_linear1d_backward", "upsample_trilinear3d_backward"),
):
    row(_name, nondeterministic=(f"{_name}_out_cuda", None))


# Padding, and samples at any position


def padding_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each element of what was padded; the kernels look at some sizes only."""
    input, padding = arguments["self"], arguments["padding"]
    dims = len(padding) // 2
    if input.dim() < dims:
        return  # the kernel says so
    padded = list(input.shape)
    for dim in range(dims):
        padded[-1 - dim] += padding[2 * dim] + padding[2 * dim + 1]
    expect("the backward pass of padding", arguments, grad_output=tuple(padded))


def grid_sampler_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each channel of the input at each place of the grid."""
    input, grid = arguments["input"], arguments["grid"]
    if input.dim() < 2 or input.dim() != grid.dim() or input.shape[0] != grid.shape[0]:
        refuse("grid_sampler's backward pass", arguments, "input", "grid")
    shape = (*input.shape[:2], *grid.shape[1:-1])
    expect("grid_sampler's backward pass", arguments, grad_output=shape)


for _dims in (1, 2, 3):
    for _kind in ("reflection", "replication"):
        row(f"{_kind}_pad{_dims}d", none_if_empty=True)
        row(f"{_kind}_pad{_dims}d_backward", checks=(padding_backward,))
    if _dims > 1:
        _name = f"grid_sampler_{_dims}d_backward"
        row(_name, nondeterministic=(f"{_name}_cuda", None))
    if _dims != 2:
        _name = f"reflection_pad{_dims}d_backward"
        row(_name, nondeterministic=(f"{_name}_out_cuda", None))
row("_grid_sampler_2d_cpu_fallback_backward", checks=(grid_sampler_backward,))
