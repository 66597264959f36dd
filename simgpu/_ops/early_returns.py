"""Calls that CUDA answers before a kernel is chosen by dtype: there is nothing to compute.

A kernel is compiled for some dtypes, and refuses others when it is chosen. Some operators return
before that where their output has no elements; some only copy a tensor of one element. The host's
kernels choose first.

Source: the calls with each dtype, by PyTorch's own code for CUDA (tests/assurance/emulated_cuda).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from simgpu._core.operators import call_on_meta, refused_dtype
from simgpu._ops.calls import PythonKernel

Tensor = torch.Tensor
_Call = dict[str, Any]

_WANTS_FLOATS = "dtype must be a floating point"  # of exponential_
# Of no elements, whatever the dtype.
_EMPTY = frozenset(
    (
        *(f"{kind}_pad{dims}d" for kind in ("reflection", "replication") for dims in (1, 2, 3)),
        *("adaptive_max_pool2d", "adaptive_max_pool3d", "_adaptive_avg_pool3d"),
        *("avg_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("rrelu_with_noise", "rrelu_with_noise_", "tril_indices", "triu_indices"),
        *("bernoulli_", "exponential_", "geometric_", "log_normal_", "normal_"),
        *("randn", "random_"),
    )
)


def _of_one(call: _Call) -> Any:
    """A copy of a tensor of one element."""
    return call["self"].clone() if call["self"].numel() == 1 else None


def _of_no_dimension(call: _Call) -> Any:
    return call["self"].clone() if call["self"].dim() == 0 else None


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


# By name and overload: what is returned, or None where a kernel is chosen.
_COPIES: dict[str, Callable[[_Call], Any]] = {
    "_logcumsumexp": _of_no_dimension,
    "median": _of_one,
    "mode": _with_index,
    "nanmedian": _of_one,
    "sort": _sorted,
    "sort.stable": _sorted,
}


def with_early_return(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, and what CUDA returns where it refuses a dtype and there is nothing to compute."""
    name = op._schema.name.removeprefix("aten::")
    copies = _COPIES.get(op._name.removeprefix("aten::"))
    if copies is None and name not in _EMPTY:
        return kernel
    names = [argument.name for argument in op._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except RuntimeError as error:
            if not (refused_dtype(error) or _WANTS_FLOATS in str(error)):
                raise
            if copies is None:
                found = _nothing(op, args, kwargs)
            else:
                found = copies({**dict(zip(names, args, strict=False)), **kwargs})
            if found is None:
                raise
        return found

    return run


def _nothing(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Results without elements on the device of a call, or None if some have elements."""
    if op._schema.name.endswith("_"):
        return None if args[0].numel() else args[0]
    first = next((value for value in args if isinstance(value, Tensor)), None)
    if first is None:  # a new tensor: its size comes first, unless it has a triangle's indices
        options = {name: kwargs[name] for name in ("dtype", "device") if name in kwargs}
        size = args[0]
        if "indices" in op._schema.name:
            size = call_on_meta(op, args, {**kwargs, "dtype": torch.int64})[0].shape
        return torch.empty(size, **options) if 0 in size else None
    # Meta kernels refuse dtypes as well: sizes are those of floats.
    floats = tree_map_only(Tensor, _like, (args, kwargs))
    try:
        found, _, _ = call_on_meta(op, *floats)
    except (RuntimeError, IndexError, ValueError):
        return None
    if any(tensor.numel() for tensor in tree_leaves(found)):
        return None
    return tree_map_only(
        Tensor,
        lambda x: torch.empty_like(
            x, dtype=x.dtype if x.dtype is torch.int64 else first.dtype, device=first.device
        ),
        found,
    )


def _like(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=torch.float32, device="meta")
