"""Batch, layer, group and RMS norms as CUDA has them, and the kernels of SyncBatchNorm.

What a forward pass keeps for the backward pass has more digits than a half, and batch norm keeps it
when it does not train as well. A model that is cast without its buffers, as `fully_shard` with a
policy of mixed precision does, has parameters of halves and running statistics of floats: the CPU
refuses that, CUDA computes it, and refuses the backward pass in one of its kernels
(aten/src/ATen/native/cuda/Normalization.cu, `batch_norm_cuda` and `batch_norm_backward_cuda`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from simgpu._core.launch import HOST_KEYS
from simgpu._ops.calls import DeviceRules, overload
from simgpu._ops.dtypes import HALF_DTYPES, check_cudnn_dtype, name_of, no_kernel
from simgpu._ops.from_schema import Call, computed, computed_by_name
from simgpu._ops.rules import expect, refuse
from simgpu._ops.table import HostCode, Keys, row

Tensor = torch.Tensor
_STATISTICS = ("weight", "bias", "running_mean", "running_var")
_SAVED = ("save_mean", "save_invstd", "save_var")


def _batch_norm(arguments: dict[str, Any]) -> None:
    """One number per channel in every parameter, as torch.nn.functional.batch_norm checks."""
    input: Tensor = arguments["input"]
    if input.dim() < 2:
        raise RuntimeError(f"batch_norm expects an input of two dimensions, got {input.dim()}")
    channels = input.shape[1]
    trains = arguments.get("training", arguments.get("train"))
    if trains is False and arguments.get("running_mean") is None:
        raise RuntimeError(
            "Expected has_running_mean to be true, but got false.  (Could this error message be "
            "improved?  If so, please report an enhancement request to PyTorch.)"
        )
    grad = arguments.get("grad_out")
    if grad is not None and (grad.shape != input.shape or 0 in input.shape):
        raise RuntimeError(
            "the backward pass of batch_norm expects elements, and a gradient of its input's shape "
            f"{tuple(input.shape)}, got one of {tuple(grad.shape)}"
        )
    # What a forward pass saved is empty where it used the running statistics.
    saved = _SAVED if arguments.get("train", arguments.get("update")) else ()
    for name in (*_STATISTICS, *saved):
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.numel() != channels:
            raise RuntimeError(f"{name} should contain {channels} elements not {given.numel()}")


def _are_mixed(
    input: Tensor, parameters: Sequence[Tensor | None], running: Sequence[Tensor]
) -> bool:
    """Whether parameters have a dtype that goes with the input, and the statistics another.

    Raises RuntimeError, as CUDA, where the parameters do not go with the input.
    """
    for x in (*parameters, *running):
        if x is not None and x.dtype != input.dtype:
            break
    else:
        return False  # nearly always
    found = {r.dtype for r in running}
    given = {p.dtype for p in parameters if p is not None}
    for dtype in given - {input.dtype, _kept_in(input)}:
        words = "expected scalar type {} but found {}"
        if input.dim() > 2:  # another kernel
            words = "Expected weight to have type {} but got {}"
        raise RuntimeError(words.format(*(name_of(x) for x in (input.dtype, dtype))))
    given = given or {input.dtype}
    return len(given) == len(found) == 1 and given != found


def _forward(stock: HostCode, keys: Keys, *args: Any, **outputs: Any) -> Any:
    """Every forward operator: `rest` are running statistics, whether it trains, and options."""
    input, weight, bias, *rest = args
    running = [x for x in rest if isinstance(x, Tensor)]
    trains = next((x for x in rest if isinstance(x, bool)), None)
    with torch._C.DisableTorchFunction():
        if _are_mixed(input, (weight, bias), running):
            wide = _kept_in(input)
            # Parameters and statistics as the host wants them; the statistics are written back.
            there = [x.to(wide) if isinstance(x, Tensor) else x for x in args[1:]]
            results = stock(keys, input, *there, **outputs)
            for mine, its in zip(rest, there[2:], strict=True):
                if isinstance(mine, Tensor) and its is not mine:
                    mine.copy_(its)
        else:
            results = stock(keys, *args, **outputs)
        if outputs:
            return results
        output, mean, *more = results
        if trains is False or (trains is None and len(results) == 3):  # ..._no_training
            mean, var = (x.to(_kept_in(input)) for x in running)
            return output, mean.clone(), (var + rest[-1]).rsqrt(), *more[1:]
        if mean.dtype not in HALF_DTYPES:
            return results
        return output, *_statistics(input, _all_but_channels(input), rest[-1]), *more[1:]


def _kept_in(input: Tensor) -> torch.dtype:
    return torch.float32 if input.dtype in HALF_DTYPES else input.dtype


def _wide(x: Tensor) -> Tensor:
    return x.to(_kept_in(x))


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _statistics(
    input: Tensor, dims: Sequence[int], eps: float, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Means over `dims`, and one over standard deviations; of halves in float32."""
    var, mean = torch.var_mean(_wide(input), [*dims], correction=0, keepdim=keepdim)
    return mean, (var + eps).rsqrt()


def _backward(stock: HostCode, keys: Keys, *args: Any, **outputs: Any) -> Any:
    """`[native_]batch_norm_backward`: with what was kept in the dtype that the host wants."""
    (grad, input, weight, mean, var, *kept), (training, _, mask, *_) = args[:7], args[7:]
    running = [x for x in (mean, var) if x is not None]
    if weight is None or not _are_mixed(input, (weight,), running):
        kept = _as_host(input, weight, *kept)
        return stock(keys, *args[:5], *kept, *args[7:], **outputs)
    if mask[0] and (training or mask[1] or mask[2]) and not _has_channels_last(input):
        raise RuntimeError(
            f"Expected running_mean to have type {name_of(weight.dtype)} but got "
            f"{name_of(running[0].dtype)}"
        )
    with torch._C.DisableTorchFunction():
        wide = [None if x is None else x.to(_kept_in(input)) for x in (weight, mean, var)]
        grads = stock(keys, grad, input, *wide, *kept, *args[7:], **outputs)
        dtypes = (input.dtype, weight.dtype, weight.dtype)
        pairs = zip(grads, dtypes, strict=True)
        return tuple(None if each is None else each.to(dtype) for each, dtype in pairs)


def _as_host(input: Tensor, weight: Tensor | None, *kept: Tensor | None) -> list[Tensor | None]:
    """What a forward pass of halves has kept, rounded as the host keeps it."""
    if input.dtype not in HALF_DTYPES or (weight is not None and weight.dtype == torch.float32):
        return [*kept]
    with torch._C.DisableTorchFunction():
        return [None if x is None else x.to(input.dtype) for x in kept]


def _layer_norm(stock: HostCode, keys: Keys, *args: Any, **outputs: Any) -> Any:
    """`native_layer_norm`: what it keeps of halves are floats."""
    input, shape, *_, eps = args
    results = stock(keys, *args, **outputs)
    if outputs or results[1].dtype not in HALF_DTYPES:
        return results
    with torch._C.DisableTorchFunction():
        dims = [*range(input.dim() - len(shape), input.dim())]
        return results[0], *_statistics(input, dims, eps, keepdim=True)


def _layer_norm_backward(stock: HostCode, keys: Keys, *args: Any, **outputs: Any) -> Any:
    """`native_layer_norm_backward`: with what was kept in the dtype that the host wants."""
    grad, input, shape, mean, rstd, weight, *rest = args
    kept = _as_host(input, weight, mean, rstd)
    return stock(keys, grad, input, shape, *kept, weight, *rest, **outputs)


def _has_channels_last(input: Tensor) -> bool:
    """Whether CUDA takes its kernels for channels that are next to each other."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if input.dim() in formats and input.is_contiguous(memory_format=formats[input.dim()]):
        return True
    return input.is_contiguous() and input.stride(1) == 1


def _cudnn_norm(arguments: dict[str, Any]) -> None:
    """cuDNN takes images with weight and bias; kernels of CUDA's own name themselves in errors."""
    input = arguments["input"]
    if input.is_floating_point():  # nearly always
        return
    affine = arguments["weight"], arguments["bias"]
    if input.dim() > 2 and input.numel() and all(each is not None for each in affine):
        check_cudnn_dtype(input.dtype, f"TensorDescriptor does not support {name_of(input.dtype)}")


_FORWARD = (
    *("_batch_norm_with_update", "_native_batch_norm_legit"),
    *("_native_batch_norm_legit_no_training", "native_batch_norm"),
)
row(*_FORWARD, host=_forward, checks=(_batch_norm, _cudnn_norm))
row("[native_]batch_norm_backward", host=_backward, checks=(_batch_norm,))
row("_batch_norm_no_update", "batch_norm_update_stats", checks=(_batch_norm,))


# Layer and group norms


def layer_norm_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each element, a mean and a deviation for each group of them, its weights."""
    input, normalized = arguments["input"], tuple(arguments["normalized_shape"])
    if input.is_nested:
        # A gradient with rows of the input's sizes.
        sizes, given = (
            t._nested_tensor_size().tolist() if t.is_nested else t.shape
            for t in (input, arguments["grad_out"])
        )
        if sizes != given:
            raise RuntimeError(
                f"native_layer_norm_backward: a gradient of sizes {given} for an input of {sizes}"
            )
        return
    groups = input.dim() - len(normalized)
    if groups < 0 or tuple(input.shape[groups:]) != normalized:
        return  # the kernel says so
    expect("native_layer_norm_backward", arguments, grad_out=tuple(input.shape))
    count = math.prod(input.shape[:groups])
    for name in ("mean", "rstd"):
        if arguments[name].numel() != count:
            refuse("native_layer_norm_backward", arguments, "input", name)
    expect("native_layer_norm_backward", arguments, weight=normalized, bias=normalized)


def _normalized(input: Tensor, weight: Tensor | None, bias: Tensor | None, **_: Any) -> None:
    """Parameters have the input's dtype, also beside halves, where the CPU takes others."""
    for parameter in (weight, bias):
        if parameter is not None and parameter.dtype != input.dtype:
            raise RuntimeError(
                f"expected scalar type {name_of(input.dtype)} but found {name_of(parameter.dtype)}"
            )


row("native_group_norm", dtypes=_normalized)
row("native_layer_norm", host=_layer_norm, dtypes=_normalized)
row("native_layer_norm_backward", host=_layer_norm_backward, checks=(layer_norm_backward,))


# Kernels of SyncBatchNorm
#
# Each rank finds mean and inverse standard deviation of its rows, all ranks' are put together by
# their counts, and the backward pass adds two sums over ranks in between. Statistics of half
# precision are in float32, as on CUDA.


def _along_channels(values: Tensor, x: Tensor) -> Tensor:
    """One number per channel, shaped to be broadcast over `x`."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _gathered_stats(call: Call) -> tuple[Tensor, Tensor]:
    """Statistics of all ranks' rows, from those of each rank (one row per rank)."""
    mean, momentum = call.mean, call.momentum
    counts = mean.new_full((len(mean),), call.count) if call.counts is None else call.counts
    weight = counts.to(mean.dtype).view(-1, 1)
    total = weight.sum()
    together = (mean * weight).sum(0) / total
    var = ((call.invstd**-2 - call.eps + (mean - together) ** 2) * weight).sum(0) / total
    if call.running_mean is not None:
        call.running_mean.mul_(1 - momentum).add_(together * momentum)
    if call.running_var is not None:
        call.running_var.mul_(1 - momentum).add_(var * (total / (total - 1)) * momentum)
    return together, (var + call.eps).rsqrt()


def _elemt(call: Call) -> Tensor:
    """The normalized rows."""
    x = call.input
    y = (_wide(x) - _along_channels(call.mean, x)) * _along_channels(call.invstd, x)
    if call.weight is not None:
        y = y * _along_channels(call.weight, x)
    if call.bias is not None:
        y = y + _along_channels(call.bias, x)
    return y.to(x.dtype)


def _backward_reduce(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """This rank's sums over its rows, and its gradients of weight and bias."""
    x, wide, dims = call.input, _wide(call.grad_out), _all_but_channels(call.input)
    sum_dy = wide.sum(dims)
    sum_dy_xmu = (wide * (_wide(x) - _along_channels(call.mean, x))).sum(dims)
    dtype = sum_dy.dtype if call.weight is None else call.weight.dtype
    none = sum_dy.new_empty(0)
    grad_weight = (sum_dy_xmu * call.invstd).to(dtype) if call.weight_g else none
    grad_bias = sum_dy.clone().to(dtype) if call.bias_g else none
    return sum_dy, sum_dy_xmu, grad_weight, grad_bias


def _backward_elemt(call: Call) -> Tensor:
    """The gradient of this rank's rows, from the sums over all ranks."""
    x, grad, invstd = call.input, call.grad_out, call.invstd
    rows = call.count.sum().to(call.mean.dtype)
    centered = _wide(x) - _along_channels(call.mean, x)
    slope = _along_channels(invstd**2 * call.sum_dy_xmu / rows, x)
    scale = _along_channels(invstd if call.weight is None else invstd * call.weight, x)
    out = (_wide(grad) - _along_channels(call.sum_dy / rows, x) - centered * slope) * scale
    return out.to(grad.dtype)


row("batch_norm_stats", make=computed(lambda x, eps: _statistics(x, _all_but_channels(x), eps)))
row("batch_norm_gather_stats[_with_counts]", make=computed_by_name(_gathered_stats))
row("batch_norm_elemt", make=computed_by_name(_elemt))
row("batch_norm_backward_reduce", make=computed_by_name(_backward_reduce))
row("batch_norm_backward_elemt", make=computed_by_name(_backward_elemt))


# What CUDA's kernel of `rms_norm` asks of devices and dtypes, in front of PyTorch's composite.
#
# CUDA has one kernel (`_fused_rms_norm`, ATen/native/cuda/layer_norm_kernel.cu), which is used
# where the input and its weight have one dtype. Elsewhere PyTorch composes it of other operators.

_compose = partial(overload("rms_norm")._handle.redispatch_boxed, HOST_KEYS)


def rms_norm(
    _: Keys,
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


row("rms_norm", above_autograd=rms_norm)
