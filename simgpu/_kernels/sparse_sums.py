"""Sums of two COO tensors, put together as CUDA does: one's values, then the other's.

The CPU merges the two by their indices, so that a sum of coalesced tensors is coalesced, and has no
kernel for float16. A program that takes `values()` of such a sum runs there and raises on a GPU.
The behaviour is that of aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu,
`add_out_sparse_cuda`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Tensor = torch.Tensor
HostCode = Callable[..., Any]

# What becomes of `alpha`, by the name of the operator.
_SIGNS = {"add": 1, "add_": 1, "sub": -1, "sub_": -1}
_REFUSED = (torch.bool, torch.complex32)  # by CUDA's kernel as by the CPU's


def host_code(op: torch._ops.OpOverload, stock: HostCode) -> HostCode:
    """What computes `op` on the host: `stock`, and CUDA's way for sums of COO tensors."""
    sign = _SIGNS.get(op._schema.name.removeprefix("aten::"))
    if sign is None or op._schema.overload_name not in ("Tensor", "out"):
        return stock
    in_place = op._schema.name.endswith("_")
    return partial(_sum, stock, sign, in_place)


def _sum(
    stock: HostCode,
    sign: int,
    in_place: bool,
    keys: torch._C.DispatchKeySet,
    self: Tensor,
    other: Tensor,
    *,
    alpha: complex = 1,
    out: Tensor | None = None,
) -> Tensor:
    """`self + sign * alpha * other`, or what `stock` has where there is nothing to put together."""
    target = self if in_place else out
    if not (_go_together(self, other) and _takes(torch.result_type(self, other), alpha, target)):
        options = {} if out is None else {"out": out}
        total: Tensor = stock(keys, self, other, alpha=alpha, **options)
        return total
    with torch._C.DisableTorchFunction():
        total = _put_together(self, other, sign * alpha, target)
        return total if target is None else target.copy_(total)


def _go_together(one: Tensor, other: Tensor) -> bool:
    """Whether they are COO tensors of one form, with values in both."""
    layouts = {one.layout, other.layout}
    return (
        layouts == {torch.sparse_coo}
        and one.shape == other.shape
        and one.sparse_dim() == other.sparse_dim()
        and min(one._nnz(), other._nnz()) > 0
    )


def _takes(dtype: torch.dtype, alpha: complex, target: Tensor | None) -> bool:
    """Whether CUDA adds in `dtype` with a factor `alpha`, and writes the sum to `target`."""
    kinds: tuple[type, ...] = (int,)
    if dtype.is_floating_point or dtype.is_complex:
        kinds = (int, float, complex) if dtype.is_complex else (int, float)
    if dtype in _REFUSED or not isinstance(alpha, kinds):
        return False
    if target is None:
        return True
    return target.layout == torch.sparse_coo and torch.can_cast(dtype, target.dtype)


def _put_together(one: Tensor, other: Tensor, alpha: complex, target: Tensor | None) -> Tensor:
    dtype = torch.result_type(one, other)
    scaled = other._values().to(dtype)
    if alpha != 1:
        scaled = scaled.mul(alpha)
    indices = torch.cat((one._indices(), other._indices()), 1)
    values = torch.cat((one._values().to(dtype), scaled))
    make = partial(torch.sparse_coo_tensor, size=one.shape, check_invariants=False)
    total = make(indices, values)
    cast = target is not None and target.dtype != dtype
    if cast or total._nnz() > total.numel():
        merged = total.coalesce()
        total = make(merged._indices(), merged._values())
    return total
