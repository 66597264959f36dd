"""Batch and layer norms as CUDA has them: their statistics, and parameters of several dtypes.

What a forward pass keeps for the backward pass has more digits than a half, and batch norm keeps it
when it does not train as well. A model that is cast without its buffers, as `fully_shard` with a
policy of mixed precision does, has parameters of halves and running statistics of floats: the CPU
refuses that, CUDA computes it, and refuses the backward pass in one of its kernels
(aten/src/ATen/native/cuda/Normalization.cu, `batch_norm_cuda` and `batch_norm_backward_cuda`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
Stock = Callable[..., Any]

_HALVES = (torch.float16, torch.bfloat16)
_NAMES = {
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
}


def _are_mixed(
    input: Tensor, parameters: Sequence[Tensor | None], running: Sequence[Tensor]
) -> bool:
    """Whether parameters have a dtype that goes with the input, and the statistics another.

    Raises RuntimeError, as CUDA, where the parameters do not go with the input.
    """
    found = {r.dtype for r in running}
    given = {p.dtype for p in parameters if p is not None}
    for dtype in given - {input.dtype, _kept_in(input)}:
        words = "expected scalar type {} but found {}"
        if input.dim() > 2:  # another kernel
            words = "Expected weight to have type {} but got {}"
        raise RuntimeError(words.format(*(_NAMES.get(x, str(x)) for x in (input.dtype, dtype))))
    given = given or {input.dtype}
    return len(given) == len(found) == 1 and given != found


def _forward(
    stock: Stock,
    keys: torch._C.DispatchKeySet,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    *rest: Any,
    **outputs: Any,
) -> Any:
    """Every forward operator: `rest` are running statistics, whether it trains, and options."""
    running = [x for x in rest if isinstance(x, Tensor)]
    trains = next((x for x in rest if isinstance(x, bool)), None)
    with torch._C.DisableTorchFunction():
        if _are_mixed(input, (weight, bias), running):
            results = _in_one_dtype(stock, keys, input, weight, bias, *rest, **outputs)
        else:
            results = stock(keys, input, weight, bias, *rest, **outputs)
        if outputs:
            return results
        output, mean, *more = results
        if trains is False or (trains is None and len(results) == 3):  # ..._no_training
            mean, var = (x.to(_kept_in(input)) for x in running)
            return output, mean.clone(), (var + rest[-1]).rsqrt(), *more[1:]
        if mean.dtype not in _HALVES:
            return results
        dims = [0, *range(2, input.dim())]
        return output, *_statistics(input, dims, rest[-1]), *more[1:]


def _in_one_dtype(
    stock: Stock, keys: torch._C.DispatchKeySet, input: Tensor, *rest: Any, **outputs: Any
) -> Any:
    """The same with parameters and statistics as the host wants them, which are written back."""
    wide = _kept_in(input)
    there = [x.to(wide) if isinstance(x, Tensor) else x for x in rest]
    results = stock(keys, input, *there, **outputs)
    for mine, its in zip(rest[2:], there[2:], strict=True):
        if isinstance(mine, Tensor) and its is not mine:
            mine.copy_(its)
    return results


def _kept_in(input: Tensor) -> torch.dtype:
    return torch.float32 if input.dtype in _HALVES else input.dtype


def _statistics(
    input: Tensor, dims: Sequence[int], eps: float, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Means of halves over `dims`, and one over their standard deviations, in float32."""
    var, mean = torch.var_mean(input.float(), [*dims], correction=0, keepdim=keepdim)
    return mean, (var + eps).rsqrt()


def _backward(
    stock: Stock,
    keys: torch._C.DispatchKeySet,
    grad: Tensor,
    input: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    *options: Any,
    **outputs: Any,
) -> Any:
    """`native_batch_norm_backward`: with what was kept in the dtype that the host wants."""
    kept: tuple[Tensor | None, ...] = (save_mean, save_invstd)
    running = [x for x in (mean, var) if x is not None]
    if weight is None or not _are_mixed(input, (weight,), running):
        kept = _as_host(input, weight, *kept)
        return stock(keys, grad, input, weight, mean, var, *kept, *options, **outputs)
    training, mask = options[0], options[2]
    if mask[0] and (training or mask[1] or mask[2]) and not _has_channels_last(input):
        raise RuntimeError(
            f"Expected running_mean to have type {_NAMES[weight.dtype]} but got "
            f"{_NAMES[running[0].dtype]}"
        )
    with torch._C.DisableTorchFunction():
        wide = [None if x is None else x.to(_kept_in(input)) for x in (weight, mean, var)]
        grads = stock(keys, grad, input, *wide, *kept, *options, **outputs)
        dtypes = (input.dtype, weight.dtype, weight.dtype)
        pairs = zip(grads, dtypes, strict=True)
        return tuple(None if each is None else each.to(dtype) for each, dtype in pairs)


def _as_host(
    input: Tensor, weight: Tensor | None, *kept: Tensor | None
) -> tuple[Tensor | None, ...]:
    """What a forward pass of halves has kept, rounded as the host keeps it."""
    if input.dtype not in _HALVES or (weight is not None and weight.dtype == torch.float32):
        return kept
    with torch._C.DisableTorchFunction():
        return tuple(None if x is None else x.to(input.dtype) for x in kept)


def _layer_norm(
    stock: Stock,
    keys: torch._C.DispatchKeySet,
    input: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    **outputs: Any,
) -> Any:
    """`native_layer_norm`: what it keeps of halves are floats."""
    results = stock(keys, input, shape, weight, bias, eps, **outputs)
    if outputs or results[1].dtype not in _HALVES:
        return results
    with torch._C.DisableTorchFunction():
        dims = [*range(input.dim() - len(shape), input.dim())]
        return results[0], *_statistics(input, dims, eps, keepdim=True)


def _layer_norm_backward(
    stock: Stock,
    keys: torch._C.DispatchKeySet,
    grad: Tensor,
    input: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    *options: Any,
    **outputs: Any,
) -> Any:
    """`native_layer_norm_backward`: with what was kept in the dtype that the host wants."""
    kept = _as_host(input, weight, mean, rstd)
    return stock(keys, grad, input, shape, *kept, weight, *options, **outputs)


def _has_channels_last(input: Tensor) -> bool:
    """Whether CUDA takes its kernels for channels that lie next to each other."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if input.dim() in formats and input.is_contiguous(memory_format=formats[input.dim()]):
        return True
    return input.is_contiguous() and input.stride(1) == 1


HOST_CODE: dict[str, Stock] = {
    **{
        f"aten::{name}": _forward
        for name in (
            "_batch_norm_with_update",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_no_training",
            "native_batch_norm",
        )
    },
    "aten::native_batch_norm_backward": _backward,
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
}
