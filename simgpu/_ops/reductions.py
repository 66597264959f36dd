"""Sums, sorts, medians and counts: their rows, and where CUDA computes otherwise."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from simgpu._ops.dtypes import (
    COMPLEX_HALVES,
    FLOAT8,
    FLOATING,
    HALVES,
    INTEGERS,
    INTEGERS_AS_DOUBLES,
    NO_COMPLEX_HALF,
    NO_FLOAT8,
    NO_UNSIGNED,
    SINCE_2_14,
    UNSIGNED,
    AfterRefusal,
    Only,
    Wider,
    no_kernel,
)
from simgpu._ops.rules import few_dims
from simgpu._ops.table import HostCode, Keys, row

Tensor = torch.Tensor
_Call = dict[str, Any]
_sum = torch.ops.aten.sum.dim_IntList._handle.redispatch_boxed

_REDUCED = NO_COMPLEX_HALF & NO_FLOAT8 & NO_UNSIGNED
row("all", dtypes=Only(_REDUCED, "and_cuda", copies_one=True))
row("any", dtypes=Only(_REDUCED, "or_cuda", copies_one=True))
# Signed integers hold unsigned ones, but for the largest of 64 bits, which stay what is not zero.
row(
    "count_nonzero",
    wider=AfterRefusal(
        {**dict.fromkeys(UNSIGNED, torch.int64), **dict.fromkeys(FLOAT8, torch.float32)}, {}
    ),
)
row("dist", "equal", "nansum", "norm", "prod", "sum", wider=COMPLEX_HALVES)


def _sum_of_numbers(stock: HostCode, keys: Keys, self: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`nansum`, of complex numbers too."""
    if not self.is_complex():
        return stock(keys, self, *args, **kwargs)
    out = kwargs.pop("out", None)
    total = _sum(keys, self.masked_fill(self.isnan(), 0), *(args or (None,)), **kwargs)
    return total if out is None else out.resize_(total.shape).copy_(total)


row("nansum", host=_sum_of_numbers)


# Counts


def _histc(self: Tensor, **_: Any) -> None:
    if self.dtype not in FLOATING | INTEGERS:
        raise no_kernel("histc", self.dtype)
    if SINCE_2_14:
        return
    if self.dtype is torch.float16:
        raise RuntimeError("HalfTensor is not supported")
    if self.dtype is torch.bfloat16:
        raise no_kernel("histc", self.dtype)


row(
    "histc",
    checks=(few_dims,),
    dtypes=_histc,
    wider=Wider({**INTEGERS_AS_DOUBLES, **HALVES}),
    nondeterministic=(
        "_histc_cuda with floating point input",
        lambda call: bool(call["self"].is_floating_point()),
    ),
)
row("bincount", nondeterministic=("_bincount_cuda", lambda call: call.get("weights") is not None))


# What sorts


def running_extreme(arguments: dict[str, Any]) -> None:
    """Outputs as large as the input; the kernel writes one number for each of its elements."""
    shapes = [tuple(arguments[name].shape) for name in ("self", "values", "indices")]
    if len(set(shapes)) > 1:
        raise RuntimeError(f"self, values and indices must have one shape, got {shapes}")


def _median(stock: HostCode, keys: Keys, self: Tensor, *args: Any, **kwargs: Any) -> Any:
    """`median`, `nanmedian` of all elements, which CUDA sorts: of bools too."""
    if self.is_complex() and not (args or kwargs):
        raise RuntimeError(" Sort does not support complex dtypes on CPU")  # it says so of any
    if self.dtype is not torch.bool or args or kwargs:
        return stock(keys, self, *args, **kwargs)
    with torch._C.DisableTorchFunction():
        return stock(keys, self.to(torch.uint8)).to(torch.bool)


def _of_one(call: _Call) -> Any:
    """A copy of a tensor of one element."""
    return call["self"].clone() if call["self"].numel() == 1 else None


def _with_index(call: _Call) -> Any:
    """The same, and where it is: the first element."""
    x = call["self"]
    if x.numel() != 1:
        return None
    kept = x.dim() == 0 or call.get("keepdim", False)
    x = x.clone() if kept else x.squeeze(call.get("dim", -1)).clone()
    return x, torch.zeros_like(x, dtype=torch.int64)


def _sorted(call: _Call) -> Any:
    x = call["self"]
    return None if x.numel() > 1 else (x.clone(), torch.zeros_like(x, dtype=torch.int64))


row("_cummax_helper", "_cummin_helper", checks=(running_extreme,))
row(
    "_logcumsumexp", returns_early=lambda call: None if call["self"].dim() else call["self"].clone()
)
row("kthvalue", checks=(partial(few_dims, past="cannot operate on more than 25 dimensions"),))
row(
    "median",
    "nanmedian",
    host=_median,
    checks=(
        partial(
            few_dims,
            past="median() cannot operate on more than 25 dimensions",
            only=lambda call: "dim" in call,
        ),
    ),
    nondeterministic=("median CUDA with indices output", lambda call: "dim" in call),
    returns_early=_of_one,
)
row("mode", checks=(partial(few_dims, sorts=True),), returns_early=_with_index)
row(
    "sort",
    checks=(partial(few_dims, past="value tensor has too many dimensions", sorts=True),),
    dtypes=Only(NO_UNSIGNED, "sortKeyValueInplace", copies_one=True),
)
row("sort.default", "sort.stable", returns_early=_sorted)
row(
    "topk",
    checks=(partial(few_dims, past="input tensor has too many dimensions"),),
    dtypes=Only(NO_FLOAT8 - UNSIGNED, "topk_out_cuda"),
)
