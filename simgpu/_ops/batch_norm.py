"""Batch norm of halves whose parameters are halves too, and whose running statistics are floats.

So they are in a model that is cast without its buffers, as `fully_shard` with a policy of mixed
precision does. The CPU refuses that. CUDA computes it, and refuses the backward pass in one of its
kernels: aten/src/ATen/native/cuda/Normalization.cu, `batch_norm_backward_cuda`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
Stock = Callable[..., Any]

_HALVES = {torch.float16: "Half", torch.bfloat16: "BFloat16"}


def _are_mixed(
    input: Tensor, parameters: Sequence[Tensor | None], running: Sequence[Tensor | None]
) -> bool:
    halves = {p.dtype for p in parameters if p is not None}
    floats = {r.dtype for r in running if r is not None}
    return input.dtype in _HALVES and halves == {input.dtype} and floats == {torch.float32}


def _forward(
    stock: Stock,
    keys: torch._C.DispatchKeySet,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    *options: Any,
    **outputs: Any,
) -> Any:
    """`native_batch_norm`: with the same numbers as floats, which the host computes."""
    if _are_mixed(input, (weight, bias), (mean, var)):
        weight = None if weight is None else weight.float()
        bias = None if bias is None else bias.float()
    return stock(keys, input, weight, bias, mean, var, *options, **outputs)


def _backward(
    stock: Stock,
    keys: torch._C.DispatchKeySet,
    grad: Tensor,
    input: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    *options: Any,
    **outputs: Any,
) -> Any:
    """`native_batch_norm_backward`: the same, but for what CUDA refuses."""
    if weight is None or not _are_mixed(input, (weight,), (mean, var)):
        return stock(keys, grad, input, weight, mean, var, *options, **outputs)
    training, mask = options[2], options[4]
    if mask[0] and (training or mask[1] or mask[2]) and not _has_channels_last(input):
        raise RuntimeError(
            f"Expected running_mean to have type {_HALVES[input.dtype]} but got Float"
        )
    grads = stock(keys, grad, input, weight.float(), mean, var, *options, **outputs)
    return tuple(None if each is None else each.to(input.dtype) for each in grads)


def _has_channels_last(input: Tensor) -> bool:
    """Whether CUDA takes its kernels for channels that lie next to each other."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if input.dim() in formats and input.is_contiguous(memory_format=formats[input.dim()]):
        return True
    return input.is_contiguous() and input.stride(1) == 1


HOST_CODE: dict[str, Stock] = {
    "aten::native_batch_norm": _forward,
    "aten::native_batch_norm_backward": _backward,
}
