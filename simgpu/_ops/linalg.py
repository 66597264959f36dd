"""Linear algebra where cuSOLVER and LAPACK take other arguments.

`torch.linalg.lstsq` knows one driver on CUDA, `svd` knows three, and `lu` needs no pivots; the host
has other drivers, none, and always pivots. The functions named `*_driver` and `ldl_solve` are
checks for `table.CHECKS`, and `HOST_CODE` says what computes an operator on the host.

Source: aten/src/ATen/native/BatchLinearAlgebra.cpp and native/cuda/linalg.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
_SVD_DRIVERS = ("gesvd", "gesvdj", "gesvda")


def lstsq_driver(arguments: dict[str, Any]) -> None:
    """CUDA has no driver but "gels"."""
    driver = arguments.get("driver")
    if driver is not None and driver.lower() != "gels":
        raise RuntimeError(
            "torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA, got "
            f"driver={driver!r}"
        )


def svd_driver(arguments: dict[str, Any]) -> None:
    """CUDA has three drivers, which find the same numbers in other ways."""
    driver = arguments.get("driver")
    if driver is not None and driver not in _SVD_DRIVERS:
        raise RuntimeError(
            f"torch.linalg.svd: unknown svd driver {driver} in svd_cusolver computation, which "
            f"knows {', '.join(_SVD_DRIVERS)}"
        )


def ldl_solve(arguments: dict[str, Any]) -> None:
    """cuSOLVER solves symmetric systems, and no Hermitian ones of complex numbers."""
    if arguments.get("hermitian") and arguments["LD"].is_complex():
        raise RuntimeError(
            "torch.linalg.ldl_solve: complex tensors with hermitian=True flag are not supported on "
            "CUDA."
        )


def _lstsq(stock: Callable[..., Any], *args: Any, driver: str | None = None, **kwargs: Any) -> Any:
    """The answers that CUDA's only driver gives, which tells no rank."""
    return stock(*args, driver="gels", **kwargs)


def _svd(stock: Callable[..., Any], *args: Any, driver: str | None = None, **kwargs: Any) -> Any:
    return stock(*args, driver=None, **kwargs)


def _lu_factor_ex(
    stock: Callable[..., Any],
    keys: torch._C.DispatchKeySet,
    A: Tensor,
    *,
    pivot: bool = True,
    check_errors: bool = False,
    **out: Tensor,
) -> Any:
    if pivot:
        return stock(keys, A, check_errors=check_errors, **out)
    found = _factors(A)
    if check_errors:
        torch._linalg_check_errors(found[2], "torch.linalg.lu_factor_ex", is_matrix=A.dim() == 2)
    return _into(found, out, ("LU", "pivots", "info"))


def _lu(
    stock: Callable[..., Any],
    keys: torch._C.DispatchKeySet,
    A: Tensor,
    *,
    pivot: bool = True,
    **out: Tensor,
) -> Any:
    if pivot:
        return stock(keys, A, **out)
    both, _, _ = _factors(A)
    rank = min(A.shape[-2:])
    lower = both[..., :rank].tril(-1)
    lower.diagonal(dim1=-2, dim2=-1).fill_(1)
    return _into((A.new_empty(0), lower, both[..., :rank, :].triu()), out, ("P", "L", "U"))


def _factors(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L and U in one matrix, the pivots of nobody, and the first zero on the diagonal, from 1."""
    *batch, rows, columns = A.shape
    rank = min(rows, columns)
    both = A.mT.clone(memory_format=torch.contiguous_format).mT  # by columns, as LAPACK's
    for i in range(rank):
        both[..., i + 1 :, i] /= both[..., i, i, None]
        both[..., i + 1 :, i + 1 :] -= both[..., i + 1 :, i, None] * both[..., None, i, i + 1 :]
    pivots = (
        torch.arange(1, rank + 1, dtype=torch.int32, device="cpu").expand(*batch, rank).contiguous()
    )
    zeros = both.diagonal(dim1=-2, dim2=-1) == 0
    places = torch.where(zeros, pivots, rank + 1)
    first = places.amin(-1) if rank else places.new_full(batch, rank + 1)
    return both, pivots, torch.where(first > rank, 0, first).to(torch.int32)


def _into(found: Sequence[Tensor], out: dict[str, Tensor], names: Sequence[str]) -> Any:
    """What was found, or the outputs of the call with it in them."""
    if not out:
        return tuple(found)
    return tuple(
        out[name].resize_(one.shape).copy_(one) for one, name in zip(found, names, strict=True)
    )


HOST_CODE: dict[str, Callable[..., Any]] = {
    "aten::_linalg_svd": _svd,
    "aten::linalg_lstsq": _lstsq,
    "aten::linalg_lu": _lu,
    "aten::linalg_lu_factor_ex": _lu_factor_ex,
}
