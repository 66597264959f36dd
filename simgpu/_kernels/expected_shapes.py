"""Shapes that operators below PyTorch's functions take for granted, such as those of gradients.

Autograd hands a backward operator a gradient of its forward's shape. A program that calls
`torch.ops.aten` itself may hand it any, and these CPU kernels would read past it. Which operators
they are for stands in `argument_checks.CHECKS`; each takes the arguments of a call by their names,
and raises RuntimeError.
"""

from __future__ import annotations

import math
from typing import Any

import torch

Tensor = torch.Tensor


def _expect(operator: str, arguments: dict[str, Any], **shapes: tuple[int, ...]) -> None:
    """The arguments named have these shapes."""
    for name, shape in shapes.items():
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.shape != shape:
            raise RuntimeError(
                f"{operator}: expected {name} of shape {shape}, got {tuple(given.shape)}"
            )


def _refuse(operator: str, arguments: dict[str, Any], *names: str) -> None:
    """Say that the arguments named do not go together."""
    given = ", ".join(f"{name} {tuple(arguments[name].shape)}" for name in names)
    raise RuntimeError(f"{operator}: these shapes do not go together: {given}")


def cdist_backward(arguments: dict[str, Any]) -> None:
    """A gradient and a distance for each pair of a row of x1 and a row of x2."""
    x1, x2 = arguments["x1"], arguments["x2"]
    if min(x1.dim(), x2.dim()) < 2 or x1.shape[-1] != x2.shape[-1]:
        _refuse("_cdist_backward", arguments, "x1", "x2")
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])  # type: ignore[no-untyped-call]
    pairs = (*batch, x1.shape[-2], x2.shape[-2])
    _expect("_cdist_backward", arguments, grad=pairs, grad_output=pairs, cdist=pairs)


def pdist_backward(arguments: dict[str, Any]) -> None:
    """A gradient and a distance for each pair of rows."""
    rows = arguments["self"]
    if rows.dim() != 2:
        _refuse("_pdist_backward", arguments, "self")
    pairs = (rows.shape[0] * (rows.shape[0] - 1) // 2,)
    _expect("_pdist_backward", arguments, grad=pairs, grad_output=pairs, pdist=pairs)


def softmax_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each probability, and a mask for each where there is one."""
    shape = tuple(arguments["output"].shape)
    _expect("the backward pass of softmax", arguments, grad_output=shape, grad=shape, mask=shape)


def segment_reduce_backward(arguments: dict[str, Any]) -> None:
    """A result for each segment, and its gradient."""
    data, axis = arguments["data"], arguments.get("axis", 0)
    lengths, offsets = arguments.get("lengths"), arguments.get("offsets")
    segments = lengths if lengths is not None else offsets
    if segments is None or not 0 <= axis < data.dim() or segments.dim() != axis + 1:
        return  # the kernel says so
    count = segments.shape[-1] - (lengths is None)
    shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
    _expect("_segment_reduce_backward", arguments, grad=shape, output=shape)


def grid_sampler_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each channel of the input at each place of the grid."""
    input, grid = arguments["input"], arguments["grid"]
    if input.dim() < 2 or input.dim() != grid.dim() or input.shape[0] != grid.shape[0]:
        _refuse("grid_sampler's backward pass", arguments, "input", "grid")
    shape = (*input.shape[:2], *grid.shape[1:-1])
    _expect("grid_sampler's backward pass", arguments, grad_output=shape)


def slow_conv_backward(arguments: dict[str, Any]) -> None:
    """As many images in the gradient as in the input."""
    grad, input = arguments["grad_output"], arguments["self"]
    if grad.dim() != input.dim() or grad.shape[:1] != input.shape[:1]:
        _refuse("_slow_conv2d_backward", arguments, "grad_output", "self")


def avg_pool_backward(arguments: dict[str, Any]) -> None:
    """As many images and channels in the gradient as in the input; the kernel looks at neither."""
    grad, input = arguments["grad_output"], arguments["self"]
    dims = len(arguments["kernel_size"])
    if grad.dim() != input.dim() or grad.shape[:-dims] != input.shape[:-dims]:
        _refuse(f"avg_pool{dims}d's backward pass", arguments, "grad_output", "self")


def _expect_nested(name: str, input: Tensor, grad: Tensor) -> None:
    """A gradient with rows of the input's sizes."""
    sizes = [t._nested_tensor_size().tolist() if t.is_nested else t.shape for t in (input, grad)]
    if sizes[0] != sizes[1]:
        raise RuntimeError(f"{name}: a gradient of sizes {sizes[1]} for an input of {sizes[0]}")


def layer_norm_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each element, a mean and a deviation for each group of them, its weights."""
    input, normalized = arguments["input"], tuple(arguments["normalized_shape"])
    if input.is_nested:
        _expect_nested("native_layer_norm_backward", input, arguments["grad_out"])
        return
    groups = input.dim() - len(normalized)
    if groups < 0 or tuple(input.shape[groups:]) != normalized:
        return  # the kernel says so
    _expect("native_layer_norm_backward", arguments, grad_out=tuple(input.shape))
    count = math.prod(input.shape[:groups])
    for name in ("mean", "rstd"):
        if arguments[name].numel() != count:
            _refuse("native_layer_norm_backward", arguments, "input", name)
    _expect("native_layer_norm_backward", arguments, weight=normalized, bias=normalized)


def multi_margin_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each row, or one for all where they were added up."""
    input, grad = arguments["self"], arguments["grad_output"]
    rows = input.shape[:-1] if arguments.get("reduction", 1) == 0 else ()
    if input.dim() > 2 or grad.numel() != math.prod(rows):
        _refuse("multi_margin_loss_backward", arguments, "grad_output", "self")


def padding_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each element of what was padded; the kernels look at some sizes only."""
    input, padding = arguments["self"], arguments["padding"]
    dims = len(padding) // 2
    if input.dim() < dims:
        return  # the kernel says so
    padded = list(input.shape)
    for dim in range(dims):
        padded[-1 - dim] += padding[2 * dim] + padding[2 * dim + 1]
    _expect("the backward pass of padding", arguments, grad_output=tuple(padded))


def linear_combination(arguments: dict[str, Any]) -> None:
    """A coefficient for each of the tensors that are combined."""
    input, coefficients = arguments["input"], arguments["coefficients"]
    if coefficients.dim() != 2 or not input.dim() or input.shape[0] != coefficients.shape[1]:
        _refuse("_compute_linear_combination", arguments, "input", "coefficients")


def sobol(arguments: dict[str, Any]) -> None:
    """One row for each dimension of the sequence in everything that it is drawn from."""
    dimension = arguments["dimension"]
    for name in ("self", "quasi", "sobolstate", "ltm"):
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.shape[:1] != (dimension,):
            raise RuntimeError(
                f"a Sobol sequence of {dimension} dimensions: expected {name} of as many rows, got "
                f"shape {tuple(given.shape)}"
            )


def rescaled_qkv(arguments: dict[str, Any]) -> None:
    """Queries, keys and values of some batch, and a bias for each of their numbers."""
    qkv, bias = arguments["qkv"], arguments["qkv_bias"]
    if qkv.dim() != 3 or qkv.numel() == 0 or bias.shape != qkv.shape[2:]:
        _refuse("_transform_bias_rescale_qkv", arguments, "qkv", "qkv_bias")


def moving_average(arguments: dict[str, Any]) -> None:
    """Ranges to average: one, or one for each channel."""
    input, dim = arguments["self"], arguments["ch_axis"]
    if dim >= input.dim():
        return  # the kernel says so
    channels = input.shape[dim] if arguments.get("per_row_fake_quant") else 1
    for name in ("running_min", "running_max", "scale", "zero_point"):
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.numel() < channels:
            raise RuntimeError(
                f"_fused_moving_avg_obs_fq_helper: expected {name} of {channels} numbers, one for "
                f"each range, got shape {tuple(given.shape)}"
            )


def transformed_dims(arguments: dict[str, Any]) -> None:
    """Dimensions of the tensor, counted from its first."""
    given: Tensor = arguments["self"]
    for dim in arguments["dim"]:
        if not 0 <= dim < given.dim():
            raise IndexError(
                f"a Fourier transform of a tensor of {given.dim()} dimensions has no dim {dim}"
            )
