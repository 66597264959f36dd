"""Elementwise operators, also of lists, fused optimizers and observers: rows and checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from simgpu._ops.dtypes import (
    COMPLEX_HALVES,
    HALF_DTYPES,
    NO_COMPLEX_HALF,
    NO_FLOAT8,
    NO_UNSIGNED,
    SINCE_2_14,
    UNSIGNED,
    AfterRefusal,
    Only,
    no_kernel,
)
from simgpu._ops.from_schema import device_kernel
from simgpu._ops.losses import POINTER
from simgpu._ops.table import HostCode, Keys, PythonKernel, row

Tensor = torch.Tensor


def _angle(self: Tensor, **_: Any) -> None:
    if self.dtype in HALF_DTYPES and not SINCE_2_14:
        raise no_kernel("angle_cuda", self.dtype)


def _igamma(kernel: str, self: Tensor, other: Tensor, **_: Any) -> None:
    if (dtype := torch.result_type(self, other)) in HALF_DTYPES:
        raise no_kernel(kernel, dtype)


def _identity(stock: HostCode, keys: Keys, *args: Any, **options: Any) -> Any:
    """`eye` of any dtype, which the numbers become when they are there."""
    try:
        return stock(keys, *args, **options)
    except NotImplementedError:
        if options.get("out") is not None:
            raise
    dtype = options.pop("dtype")
    return stock(keys, *args, **options, dtype=torch.int64).to(dtype)


row(
    "abs[_]",
    dtypes=Only(NO_FLOAT8, "abs_cuda"),
    wider=AfterRefusal({torch.bool: torch.uint8}, {torch.uint8: torch.bool}),
)
row("isinf", dtypes=Only(NO_FLOAT8, "abs_cuda"))
for _name in ("and", "or", "xor"):
    row(f"bitwise_{_name}[_]", dtypes=Only(NO_UNSIGNED, f"bitwise_{_name}_cuda"))
row("mul[_]", dtypes=Only(NO_FLOAT8 - UNSIGNED, "mul_cuda", promotes=True))
row("angle", dtypes=_angle)
for _name in ("igamma", "igammac"):
    row(f"{_name}[_]", dtypes=partial(_igamma, f"{_name}_cuda"))
row(
    *("acos[_]", "acosh[_]", "angle", "asin[_]", "asinh[_]", "atan[_]", "atanh[_]", "cos[_]"),
    *("cosh[_]", "div[_]", "exp[_]", "lerp[_]", "log[_]", "logaddexp", "pow[_]", "rsqrt[_]"),
    *("sigmoid[_]", "sigmoid_backward", "sin[_]", "sinh[_]", "sqrt[_]", "tan[_]", "tanh[_]"),
    "tanh_backward",
    wider=COMPLEX_HALVES,
)
row("eye", host=_identity)

# Elementwise operators whose CUDA kernels take no CPU number for these arguments, though their
# CPU kernels would: with the words of the kernel, or with none where the iterator refuses.
_ADDCMUL = (
    "CPU Scalar support for {} argument is not supported when calling addcmul on CUDA tensors."
)
row("addcdiv[_]", no_cpu_numbers={"self": "", "tensor1": "", "tensor2": ""})
row(
    "addcmul[_]",
    dtypes=Only(NO_COMPLEX_HALF, "addcmul_cuda"),
    no_cpu_numbers={
        "self": _ADDCMUL.format("self"),
        "tensor1": _ADDCMUL.format("tensor1")
        + " However, CPU Scalar support for tensor2 is supported, please swap your tensor1 and "
        "tensor2 terms.",
    },
)
row("lerp[_]", no_cpu_numbers={"self": POINTER.format(1), "end": POINTER.format(2)})


# Lists of tensors


def _unscale(self: Sequence[Tensor], **_: Any) -> None:
    """What GradScaler.unscale_ calls: CUDA has no kernel for gradients of bfloat16."""
    for gradient in self:
        if gradient.dtype is torch.bfloat16 and gradient.numel():
            raise no_kernel("_amp_foreach_non_finite_check_and_unscale_cuda", gradient.dtype)


for _kernel, _names in {
    "unary_op": (
        *("acos", "asin", "atan", "cos", "cosh", "exp", "log", "neg", "reciprocal"),
        *("rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh"),
    ),
    "pointwise_op": ("addcdiv", "addcmul"),
}.items():
    for _name in _names:
        row(f"_foreach_{_name}[_]", dtypes=Only(NO_COMPLEX_HALF, f"foreach_{_kernel}_cuda"))
for _kernel, _names in {
    "tensor_lerp_scalar": ("lerp[_].Scalar",),
    "binary_op_list": ("add[_].List", "div[_].List", "mul[_].List", "sub[_].List"),
    "binary_op_scalar": ("add[_].Scalar", "div[_].Scalar", "mul[_].Scalar", "pow[_].Scalar"),
}.items():
    for _name in _names:
        row(f"_foreach_{_name}[_out]", dtypes=Only(NO_COMPLEX_HALF, f"foreach_{_kernel}_cuda"))
row("_amp_foreach_non_finite_check_and_unscale[_]", dtypes=_unscale)
# These combine one tensor without dimensions with each of a list.
row("_foreach_add[_].Tensor", one_on_host=False)
row("_foreach_div[_].Tensor", "_foreach_mul[_].Tensor", one_on_host=True)
# CUDA's kernels of these count no change of their tensors, if they are computed in one launch.
row("_foreach_lerp_.Scalar", "_foreach_lerp_.ScalarList", "_foreach_zero_.default", uncounted=True)


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
    steps = zip(one.shape, one.stride(), other.stride(), strict=True)
    alike = all(mine == its for size, mine, its in steps if size != 1)
    return alike and bool(torch.ops.aten.is_non_overlapping_and_dense(one))


for _name in ("adagrad", "adam", "adamw", "sgd"):
    row(f"_fused_{_name}[_]", checks=(fused_optimizer,))


# The fused observer of quantization-aware training, which makes room for its channels.
#
# A module that observes channels cannot know how many there will be, so it begins with empty
# buffers for their ranges, and the first call resizes them. Memory under a host alias cannot grow:
# here the buffers of the device do, before the host's kernel fills them
# (aten/src/ATen/native/quantized/cuda/FusedObsFakeQuant.cu).

_BUFFERS = ("running_min", "running_max", "scale", "zero_point")


def _fused_observer(observer: torch._ops.OpOverload) -> PythonKernel:
    """`torch.fused_moving_avg_obs_fake_quant` without autograd: the quantized, and its mask."""
    observe = device_kernel(observer)

    def run(self: Tensor, observer_on: Tensor, fake_quant_on: Tensor, *given: Any) -> Any:
        buffers, dim = dict(zip(_BUFFERS, given[:4], strict=True)), given[7]
        per_row = len(given) > 8 and given[8]
        if dim >= self.dim():
            return observe(self, observer_on, fake_quant_on, *given)  # which says so
        ranges = self.shape[dim] if per_row else 1
        if per_row and given[0].numel() == 0:
            for name, unset in (("running_min", math.inf), ("running_max", -math.inf)):
                buffers[name].resize_(ranges).fill_(unset)
            for name in ("scale", "zero_point"):
                buffers[name].resize_(ranges)
        for name, buffer in buffers.items():
            if buffer.numel() < ranges:
                raise RuntimeError(
                    f"_fused_moving_avg_obs_fq_helper: expected {name} of {ranges} numbers, one "
                    f"for each range, got shape {tuple(buffer.shape)}"
                )
        return observe(self, observer_on, fake_quant_on, *given)

    return run


row("_fused_moving_avg_obs_fq_helper", make=_fused_observer)
