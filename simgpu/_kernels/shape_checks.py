"""Checks of shapes, dtypes and layouts, for host kernels that would read past smaller tensors.

Which operators they are for stands in `argument_checks.CHECKS`; each takes the arguments of a call
by their names, and raises RuntimeError.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from simgpu._kernels.dtype_rules import name_of, type_of
from simgpu._naming import visible_text

Tensor = torch.Tensor
_STATISTICS = ("weight", "bias", "running_mean", "running_var")
_SAVED = ("save_mean", "save_invstd", "save_var")


def batch_norm(arguments: dict[str, Any]) -> None:
    """One number per channel in every parameter, as torch.nn.functional.batch_norm checks."""
    input: Tensor = arguments["input"]
    if input.dim() < 2:
        raise RuntimeError(f"batch_norm expects an input of two dimensions, got {input.dim()}")
    channels = input.shape[1]
    grad = arguments.get("grad_out")
    if grad is not None and (grad.shape != input.shape or channels == 0):
        raise RuntimeError(
            "the backward pass of batch_norm expects channels, and a gradient of its input's shape "
            f"{tuple(input.shape)}, got one of {tuple(grad.shape)}"
        )
    # What a forward pass saved is empty where it used the running statistics.
    saved = _SAVED if arguments.get("train", arguments.get("update")) else ()
    for name in (*_STATISTICS, *saved):
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.numel() != channels:
            raise RuntimeError(f"{name} should contain {channels} elements not {given.numel()}")


def embedding(arguments: dict[str, Any]) -> None:
    """Indices are integers: PyTorch asks that before it asks on which device they are."""
    indices = arguments["indices"]
    if indices.dtype not in (torch.int64, torch.int32):
        found = visible_text(type_of(indices))
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got {found} instead (while checking arguments for embedding)"
        )


def few_dims(
    arguments: dict[str, Any],
    words: str = "CUDA Tensors cannot have more than 25 dimensions",
    most: int = 24,
) -> None:
    """As many dimensions as CUDA's kernels have room for (ATen/cuda/detail/TensorInfo.cuh)."""
    if arguments["self"].dim() > most:
        raise RuntimeError(words)


def int8_product(arguments: dict[str, Any]) -> None:
    """Sizes and the dtype that cuBLAS has for eight bits (ATen/native/cuda/Blas.cpp, _int_mm)."""
    left, right = arguments["self"], arguments["mat2"]
    for name, matrix in (("self", left), ("mat2", right)):
        if matrix.dim() != 2:
            raise RuntimeError(f"Expected {name} to be of dimension 2 but got {matrix.dim()}")
    if left.shape[0] <= 16:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {left.shape[0]}")
    for name, matrix in (("self", left), ("mat2", right)):
        size = matrix.shape[1]
        if size == 0 or size % 8:
            raise RuntimeError(
                f"{name}.size(1) needs to be greater than 0 and a multiple of 8, but got {size}"
            )
        if left.shape[1] != right.shape[0]:
            raise RuntimeError(
                "self.size(1) needs to match mat2.size(0) but got "
                f"{left.shape[1]} and {right.shape[0]}"
            )
    for matrix in (left, right):
        if matrix.dtype is not torch.int8:
            raise RuntimeError(f"expected scalar type Char but found {name_of(matrix.dtype)}")


def scaled_product(arguments: dict[str, Any]) -> None:
    """Sizes and layouts that cuBLAS has for float8 (ATen/native/cuda/ScaledBlas.cpp)."""
    left, right = arguments["self"], arguments["mat2"]
    if left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0]:
        return  # the kernel says so
    (rows, inner), (_, columns) = left.shape, right.shape
    if inner % 16:
        raise RuntimeError(
            "Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: "
            f"({rows}x{inner})."
        )
    if columns % 16:
        raise RuntimeError(f"mat2 shape ({inner}x{columns}) must be divisible by 16")
    scales = (_first(arguments[name]) for name in ("scale_a", "scale_b"))
    if not rows * inner * columns or any(scale.numel() != 1 for scale in scales):
        return  # nothing to compute, or a kernel for rows and blocks of their own scales
    if _is_column_major(left) or not _is_column_major(right):
        raise RuntimeError(
            "Only multiplication of row-major and column-major matrices is supported by cuBLASLt"
        )


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


def _is_column_major(matrix: Tensor) -> bool:
    """Whether cuBLAS reads it by columns, with gaps or without; it reads copies of others."""
    (rows, _), (down, along) = matrix.shape, matrix.stride()
    return not matrix.is_contiguous() and down == 1 and along >= rows


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
    """How many rows (`dim` is 0) or columns of the input one of the output stands for."""
    old, new = arguments["self"].shape[2 + dim], arguments["output_size"][dim]
    if arguments["align_corners"]:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    told: float | None = arguments.get(("scales_h", "scales_w")[dim])
    return float(1 / told if told else old / new)


def adaptive_avg_pool_backward(arguments: dict[str, Any], dims: int) -> None:
    """As many images and channels in the gradient as in the input; the kernel counts the one's."""
    grad, input = arguments["grad_output"], arguments["self"]
    fits = grad.dim() == input.dim() and grad.shape[:-dims] == input.shape[:-dims]
    if not fits or 0 in input.shape[-dims:]:
        raise RuntimeError(
            f"the gradient of adaptive_avg_pool{dims}d, of shape {tuple(grad.shape)}, does not go "
            f"with an input of shape {tuple(input.shape)}"
        )


def running_extreme(arguments: dict[str, Any]) -> None:
    """Outputs as large as the input; the kernel writes one number for each of its elements."""
    shapes = [tuple(arguments[name].shape) for name in ("self", "values", "indices")]
    if len(set(shapes)) > 1:
        raise RuntimeError(f"self, values and indices must have one shape, got {shapes}")


def flash_attention(arguments: dict[str, Any]) -> None:
    """Four dimensions that agree, and something to attend to; the kernel walks by query's sizes."""
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return  # the kernel says so
    batch, heads, length, size = query.shape
    fits = key.shape[2] == value.shape[2] > 0 and heads > 0 and length > 0
    for tensor in (key, value):
        groups = tensor.shape[1]
        fits = fits and tensor.shape[0] == batch and tensor.shape[3] == size
        fits = fits and groups > 0 and heads % groups == 0
    shapes = {"query": query, "key": key, "value": value}
    if "grad_out" in arguments:
        for name, expected in (("grad_out", 4), ("out", 4), ("logsumexp", 3)):
            shapes[name] = arguments[name]
            fits = fits and arguments[name].shape == query.shape[:expected]
    if not fits:
        given = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in shapes.items())
        raise RuntimeError(
            "flash attention expects (batch, heads, length, size), the lengths of key and value "
            "equal and nothing empty, their heads to divide those of query, and in the backward "
            f"pass what the forward pass made of them, got {given}"
        )


_INT8_VECTOR = 16  # elements that the kernel loads at once, from addresses that are multiples


def int8_weights(arguments: dict[str, Any]) -> None:
    """Rows of whole vectors at aligned addresses, in bfloat16; the kernel looks at neither."""
    input, weights = arguments["self"], arguments["mat2"]
    if input.dtype != torch.bfloat16 or input.dim() != 2:
        return
    whole = input.shape[1] % _INT8_VECTOR == 0
    if not whole or any(x.data_ptr() % (_INT8_VECTOR * x.itemsize) for x in (input, weights)):
        raise RuntimeError(
            f"_weight_int8pack_mm in bfloat16 expects rows of a multiple of {_INT8_VECTOR} "
            "elements that begin at one in memory, got an input of shape "
            f"{tuple(input.shape)} at storage offset {input.storage_offset()} and weights of shape "
            f"{tuple(weights.shape)} at {weights.storage_offset()}: pad the rows with zeros, or "
            "take float32"
        )


def sparse_broadcast(arguments: dict[str, Any]) -> None:
    """No new dimension without elements; the kernel divides by the product of those."""
    size, old = list(arguments["size"]), list(arguments["self"].shape)
    added = len(size) - len(old)
    if 0 in size[: max(added, 0)] or any(
        new == 0 != was for new, was in zip(size[max(added, 0) :], old, strict=False)
    ):
        raise RuntimeError(
            f"a sparse tensor cannot be broadcast to size={list(arguments['size'])}, which has no "
            "elements"
        )


def fused_optimizer(arguments: dict[str, Any]) -> None:
    """Tensors of one parameter laid out alike; the kernel goes through them side by side.

    CUDA asks for the same (aten/src/ATen/native/cuda/FusedAdamKernel.cu).
    """
    lists = {
        "params" if name == "self" else name: value
        for name, value in arguments.items()
        if isinstance(value, (list, tuple)) and value and name != "state_steps"
    }
    for name, tensors in lists.items():
        for position, (param, tensor) in enumerate(zip(lists["params"], tensors, strict=False)):
            if not _laid_out_alike(param, tensor):
                *most, last = lists
                raise RuntimeError(
                    f"{', '.join(most)}, and {last} must have same dtype, device, and layout, got "
                    f"params[{position}] of shape {tuple(param.shape)} and strides "
                    f"{param.stride()}, {name}[{position}] of shape {tuple(tensor.shape)} and "
                    f"strides {tensor.stride()}"
                )
    for name in ("grad_scale", "found_inf"):
        number = arguments.get(name)
        if number is not None and number.numel() != 1:
            raise RuntimeError(f"{name} must be one number, got shape {tuple(number.shape)}")


def _laid_out_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have their elements in the same places, without gaps or overlaps."""
    if one.shape != other.shape:
        return False
    if one.is_contiguous() and other.is_contiguous():
        return True
    places, others = (
        [(step, size) for step, size in zip(t.stride(), t.shape, strict=True) if size != 1]
        for t in (one, other)
    )
    expected = 1
    for step, size in sorted(places):
        if step != expected:
            return False
        expected *= size
    return places == others
