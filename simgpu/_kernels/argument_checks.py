"""Checks in front of host kernels that trust their arguments and would read past their memory.

Most of PyTorch's CPU kernels check what they are given. A few leave it to their callers, and with
other arguments they take the interpreter down; on a GPU the same calls raise or compute nonsense.
Each check here raises instead. To add one, add a function and, in `CHECKS`, its operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._kernels.overloads import PythonKernel
from simgpu._native.dlpack_relabel import host_alias

Tensor = torch.Tensor
_Check = Callable[[dict[str, Any]], None]
_STATISTICS = ("weight", "bias", "running_mean", "running_var")
_SAVED = ("save_mean", "save_invstd", "save_var")


def _batch_norm(arguments: dict[str, Any]) -> None:
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


def _flash_attention(arguments: dict[str, Any]) -> None:
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


def _segment_reduce(arguments: dict[str, Any]) -> None:
    """Segments lie within the data; the kernel looks at neither offsets nor unsafe lengths."""
    data: Tensor = arguments["data"]
    axis = arguments.get("axis", 0)
    for name in ("offsets", "lengths"):
        segments = arguments.get(name)
        if segments is None:
            continue
        length = data.shape[axis] if -data.dim() <= axis < data.dim() else -1
        host = host_alias(segments)
        if name == "lengths":
            fits = segments.dim() > 0 and bool(((host.sum(-1) <= length) & (host >= 0).all()).all())
        else:
            inside = ((host >= 0) & (host <= length)).all() & (host.diff() >= 0).all()
            fits = segments.dim() > 0 and segments.shape[-1] > 0 and bool(inside)
        if not fits or segments.shape[:-1] != data.shape[: segments.dim() - 1]:
            raise RuntimeError(
                f"segment_reduce: {name} of shape {tuple(segments.shape)} must be segments of "
                f"dimension {axis} of data, whose shape is {tuple(data.shape)}"
            )


def _pivots(arguments: dict[str, Any]) -> None:
    """Pivots name rows of their matrix; LAPACK swaps whatever rows it is told."""
    matrix, pivots = (
        next(arguments[name] for name in names if name in arguments)
        for names in (("LU", "LU_data", "LD"), ("pivots", "LU_pivots"))
    )
    if matrix.dim() < 2 or pivots.is_floating_point() or pivots.is_complex():
        return  # the kernel says so
    rows = matrix.shape[-2]
    expected = (*matrix.shape[:-2], min(matrix.shape[-2:]))
    host = host_alias(pivots)
    inside = (host.abs() >= 1) & (host.abs() <= rows)
    if "LD" in arguments:  # a block of two rows has two equal negative pivots
        halves = (host < 0).sum(-1) % 2 == 0
        inside = inside & halves.unsqueeze(-1) if host.dim() else inside
    else:
        inside = inside & (host > 0)
    if pivots.shape != expected or not bool(inside.all()):
        raise RuntimeError(
            f"pivots must be of shape {expected} and name rows from 1 to {rows}, got "
            f"{tuple(pivots.shape)}"
        )


def _sparse_broadcast(arguments: dict[str, Any]) -> None:
    """No dimension without elements; the kernel divides by their product."""
    if 0 in arguments["size"]:
        raise RuntimeError(
            f"a sparse tensor cannot be broadcast to size={list(arguments['size'])}, which has no "
            "elements"
        )


def _converted_indices(arguments: dict[str, Any]) -> None:
    """Row indices within their matrix, or row ends that rise to the number of columns given."""
    compressed = arguments.get("crow_indices")
    given = host_alias(arguments["self"] if compressed is None else compressed)
    if compressed is None:
        low, high = 0, arguments["size"] - 1
        fits = True
    else:
        low, high = 0, arguments["col_indices"].shape[-1]
        fits = bool((given[..., 0] == low).all() & (given[..., -1] == high).all())
        fits = fits and bool((given.diff() >= 0).all())
    if not fits or (given.numel() and not bool(((given >= low) & (given <= high)).all())):
        name = "indices" if compressed is None else "crow_indices that rise"
        raise RuntimeError(f"expected {name} from {low} to {high}, got {given.tolist()}")


def _fused_optimizer(arguments: dict[str, Any]) -> None:
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


CHECKS: dict[str, _Check] = {
    "_batch_norm_no_update": _batch_norm,
    "_batch_norm_with_update": _batch_norm,
    "_convert_indices_from_coo_to_csr": _converted_indices,
    "_convert_indices_from_csr_to_coo": _converted_indices,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_scaled_dot_product_flash_attention_for_cpu": _flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _flash_attention,
    "_segment_reduce_backward": _segment_reduce,
    "_sparse_broadcast_to": _sparse_broadcast,
    "batch_norm_backward": _batch_norm,
    "batch_norm_update_stats": _batch_norm,
    "linalg_ldl_solve": _pivots,
    "linalg_lu_solve": _pivots,
    "lu_unpack": _pivots,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm,
    "segment_reduce": _segment_reduce,
    **{
        f"_fused_{name}{in_place}": _fused_optimizer
        for name in ("adagrad", "adam", "adamw", "sgd")
        for in_place in ("_", "")
    },
}


def with_check(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, behind the check that its operator needs; most need none."""
    check = CHECKS.get(op._schema.name.removeprefix("aten::"))
    if check is None:
        return kernel
    names = [argument.name for argument in op._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        check({**dict(zip(names, args, strict=False)), **kwargs})
        return kernel(*args, **kwargs)

    return run
