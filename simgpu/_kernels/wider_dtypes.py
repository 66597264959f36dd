"""Dtypes for which CUDA has a kernel and the CPU has none: computed in a wider one, and rounded.

`avg_pool3d` and Fourier transforms of float16, `histc` of integers: what a GPU computes must not
end a program here. A kernel of CUDA computes a narrow dtype in a wider one and rounds once, and
so does the host code here. `dtype_rules` has the opposite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map, tree_map_only

from simgpu._kernels import batch_norm, solvers

Tensor = torch.Tensor
HostCode = Callable[..., Any]
Dtypes = Mapping[torch.dtype, torch.dtype]
_sum = torch.ops.aten.sum.dim_IntList._handle.redispatch_boxed

_HALF = {torch.float16: torch.float32}
_HALVES = {**_HALF, torch.bfloat16: torch.float32}
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
# Integers of as many bits, for what is only moved.
_BITS = {
    **dict.fromkeys(_FLOAT8, torch.uint8),
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.complex32: torch.int32,
}
if hasattr(torch, "float8_e8m0fnu"):  # since 2.7
    _BITS[torch.float8_e8m0fnu] = torch.uint8
_COMPLEX = {torch.complex32: torch.complex64}
_INTEGERS = dict.fromkeys(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), torch.float64
)


def _without_trace(wider: dict[torch.dtype, torch.dtype]) -> dict[torch.dtype, torch.dtype]:
    """Those of which the host has no trace: older releases have none of halves."""
    found = {}
    for dtype, wide in wider.items():
        try:
            torch.trace(torch.zeros(1, 1, dtype=dtype, device="cpu"))
        except NotImplementedError:
            found[dtype] = wide
    return found


# Which dtype is computed in which, by the name of the operator.
_WIDER: dict[str, dict[torch.dtype, torch.dtype]] = {
    "_fft_c2c": _COMPLEX,
    "_fft_c2r": _COMPLEX,
    "_fft_r2c": _HALVES,
    "_upsample_bicubic2d_aa": _HALVES,
    "_upsample_bicubic2d_aa_backward": _HALVES,
    "_upsample_bilinear2d_aa": _HALVES,
    "_upsample_bilinear2d_aa_backward": _HALVES,
    "avg_pool3d": _HALVES,
    "avg_pool3d_backward": _HALVES,
    "histc": _INTEGERS,
    "multi_margin_loss": _HALVES,
    "multi_margin_loss_backward": _HALVES,
    "multilabel_margin_loss_backward": _HALVES,
    "multilabel_margin_loss_forward": _HALVES,
    "sparse_sampled_addmm": _HALVES,
    "trace": {**_COMPLEX, **_without_trace(_HALVES), torch.bool: torch.uint8},
}
# What becomes of the dtype of a result, where the arguments were of this one.
_BACK = {
    torch.float16: {torch.float32: torch.float16, torch.complex64: torch.complex32},
    torch.bfloat16: {torch.float32: torch.bfloat16},
    torch.complex32: {
        torch.float32: torch.float16,
        torch.float64: torch.float16,  # these are outputs of the caller
        torch.complex64: torch.complex32,
        torch.complex128: torch.complex32,
    },
    **{dtype: {wide: dtype} for dtype, wide in _INTEGERS.items()},
    torch.bool: {},
}


class _Refused(NamedTuple):
    """What arguments become once the host's kernel has refused them, and results after it."""

    wider: Dtypes
    back: Dtypes


# Halves are among the arguments where a number or a tensor of no dimension makes them complex.
_COMPLEX_HALVES = _Refused({**_COMPLEX, **_HALF}, _BACK[torch.complex32])
_REFUSED: dict[str, _Refused] = {
    "abs": _Refused({torch.bool: torch.uint8}, {torch.uint8: torch.bool}),
    **dict.fromkeys(
        (
            *("acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "cos", "cosh", "div"),
            *("exp", "lerp", "log", "logaddexp", "nansum", "pow", "prod", "rsqrt", "sigmoid"),
            *("sigmoid_backward", "sin", "sinh", "sqrt", "sum", "tan", "tanh", "tanh_backward"),
        ),
        _COMPLEX_HALVES,
    ),
}
# What only moves numbers.
_MOVED = ("flip", "gather", "gather.out", "scatter.src", "scatter.src_out")
# The same with one number, which CUDA takes for float8 only, and since a release.
_FILLED = ("scatter.value", "scatter.value_out") if torch.__version__ >= "2.15" else ()


def host_code(op: torch._ops.OpOverload) -> HostCode | None:
    """What computes `op` on the host, or None where PyTorch's own kernel has all dtypes."""
    stock: HostCode = op._handle.redispatch_boxed
    own = _HOST_CODE.get(op._schema.name)
    if own is not None:
        stock = partial(own, stock)
    return widened(op, stock) or (None if own is None else stock)


def widened(op: torch._ops.OpOverload, stock: HostCode) -> HostCode | None:
    """What calls `stock` with wider tensors where it has to, or None where it has all dtypes."""
    name = op._schema.name.removeprefix("aten::").removesuffix("_")
    written = [
        (position, a.name)
        for position, a in enumerate(op._schema.arguments)
        if a.alias_info and a.alias_info.is_write
    ]
    if name in _WIDER:
        return partial(_compute, stock, _WIDER[name], written)
    if name in _REFUSED:
        return _asking_first(stock, partial(_in_wider, stock, _REFUSED[name], written))
    overload = f"{name}.{op._schema.overload_name}".removesuffix(".")
    if overload in _MOVED:
        return _asking_first(stock, partial(_in_bits, stock))
    if overload in _FILLED:
        return _asking_first(stock, partial(_number_in_bits, stock))
    return None


def _compute(
    stock: HostCode,
    wider: Dtypes,
    written: Sequence[tuple[int, str]],
    keys: torch._C.DispatchKeySet,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call `stock` with wider tensors if its first argument is narrow, and round the results."""
    narrow = args[0].dtype
    if narrow not in wider:
        return stock(keys, *args, **kwargs)
    return _in_wider(stock, _Refused(wider, _BACK[narrow]), written, keys, args, kwargs)


def _asking_first(stock: HostCode, otherwise: HostCode) -> HostCode:
    """`stock`, and `otherwise` once it has refused: the first costs hardly anything."""

    def run(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        try:
            return stock(keys, *args, **kwargs)
        except NotImplementedError as error:
            refusal = error  # having written nothing
        return _once_refused(refusal, otherwise, keys, args, kwargs)

    return run


def _once_refused(refusal: NotImplementedError, otherwise: HostCode, *call: Any) -> Any:
    """What `otherwise` makes of a call, or the first refusal if that has no dtype for it either."""
    try:
        return otherwise(*call)
    except NotImplementedError:
        raise refusal from None


def _in_wider(
    stock: HostCode,
    dtypes: _Refused,
    written: Sequence[tuple[int, str]],
    keys: torch._C.DispatchKeySet,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call `stock` with wider tensors and dtypes, and round its results or what it has written."""
    wider, back = dtypes

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(wider.get(leaf.dtype, leaf.dtype))
        return wider.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    # It is ours: torch-function modes of the user must not see how it computes.
    with torch._C.DisableTorchFunction():
        wide_args, wide_kwargs = tree_map(widen, (args, kwargs))
        results = stock(keys, *wide_args, **wide_kwargs)
        if not written:
            return tree_map_only(Tensor, lambda x: x.to(back.get(x.dtype, x.dtype)), results)
        outputs = []
        for position, name in written:
            by_name = name in kwargs
            output = kwargs[name] if by_name else args[position]
            wide = wide_kwargs[name] if by_name else wide_args[position]
            output.resize_(wide.shape).copy_(wide.to(back.get(wide.dtype, wide.dtype)))
            outputs.append(output)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _in_bits(
    stock: HostCode,
    keys: torch._C.DispatchKeySet,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call `stock` with integers of the same bits, where it only moves them.

    An output has got its shape from the kernel that refused.
    """
    narrow = args[0].dtype
    bits = _BITS.get(narrow, narrow)

    def as_bits(tensor: Tensor) -> Tensor:
        return tensor.view(bits) if tensor.dtype == narrow else tensor

    with torch._C.DisableTorchFunction():
        host_args, host_kwargs = tree_map_only(Tensor, as_bits, (args, kwargs))
        result = stock(keys, *host_args, **host_kwargs)
        return result.view(narrow)


def _number_in_bits(
    stock: HostCode,
    keys: torch._C.DispatchKeySet,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`scatter` of one number: `stock` with its bits, if the tensor is of float8."""
    *others, number = args
    if others[0].dtype not in _FLOAT8:
        return stock(keys, *args, **kwargs)  # which refuses
    with torch._C.DisableTorchFunction():
        bits = torch.tensor(number, device="cpu").to(others[0].dtype).view(torch.uint8).item()
    return _in_bits(stock, keys, (*others, bits), kwargs)


def _sum_of_numbers(
    stock: HostCode, keys: torch._C.DispatchKeySet, self: Tensor, *args: Any, **kwargs: Any
) -> Any:
    """`nansum`, of complex numbers too."""
    if not self.is_complex():
        return stock(keys, self, *args, **kwargs)
    out = kwargs.pop("out", None)
    total = _sum(keys, self.masked_fill(self.isnan(), 0), *(args or (None,)), **kwargs)
    return total if out is None else out.resize_(total.shape).copy_(total)


_HOST_CODE: dict[str, HostCode] = {
    "aten::nansum": _sum_of_numbers,
    **batch_norm.HOST_CODE,
    **solvers.HOST_CODE,
}
