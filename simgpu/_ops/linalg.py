"""Linear algebra where cuSOLVER and LAPACK take other arguments.

`torch.linalg.lstsq` knows one driver on CUDA, `svd` knows three, and `lu` needs no pivots; the host
has other drivers, none, and always pivots.

Source: aten/src/ATen/native/BatchLinearAlgebra.cpp and native/cuda/linalg.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from simgpu._native.relabel import host_alias
from simgpu._ops.dtypes import AND_COMPLEX, COMPLEX_HALF, COMPLEX_HALVES, HALVES, Only, Wider
from simgpu._ops.rules import few_dims, reads_values, refuse
from simgpu._ops.table import HostCode, Keys, row

Tensor = torch.Tensor
_OF_LAPACK = (torch.float32, torch.float64, torch.complex64, torch.complex128)
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


def _lstsq(stock: HostCode, *args: Any, driver: str | None = None, **kwargs: Any) -> Any:
    """The answers that CUDA's only driver gives, which computes no rank."""
    return stock(*args, driver="gels", **kwargs)


def _svd(stock: HostCode, *args: Any, driver: str | None = None, **kwargs: Any) -> Any:
    return _last_in_rows(stock, *args, driver=None, **kwargs)


def _last_in_rows(stock: HostCode, *args: Any, **kwargs: Any) -> Any:
    """cuSOLVER writes Vh and eigenvectors in rows, LAPACK in columns."""
    *found, vectors = stock(*args, **kwargs)
    is_out = any(vectors is given for given in kwargs.values())
    return *found, vectors if is_out else vectors.contiguous()


def _lu_factor_ex(
    stock: HostCode,
    keys: Keys,
    A: Tensor,
    *,
    pivot: bool = True,
    check_errors: bool = False,
    **out: Tensor,
) -> Any:
    if pivot or A.dtype not in _OF_LAPACK:
        return stock(keys, A, check_errors=check_errors, **out)
    found = _factors(A)
    if check_errors:
        torch._linalg_check_errors(found[2], "torch.linalg.lu_factor_ex", is_matrix=A.dim() == 2)
    return _into(found, out, ("LU", "pivots", "info"))


def _lu(stock: HostCode, keys: Keys, A: Tensor, *, pivot: bool = True, **out: Tensor) -> Any:
    if pivot or A.dtype not in _OF_LAPACK:
        return stock(keys, A, **out)
    both, _, _ = _factors(A)
    rank = min(A.shape[-2:])
    lower = both[..., :rank].tril(-1)
    lower.diagonal(dim1=-2, dim2=-1).fill_(1)
    return _into((A.new_empty(0), lower, both[..., :rank, :].triu()), out, ("P", "L", "U"))


def _factors(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L and U in one matrix, pivots that swap no rows, and the first zero on the diagonal."""
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


@reads_values
def pivots(arguments: dict[str, Any]) -> None:
    """Pivots name rows of their matrix; LAPACK swaps whatever rows it is given."""
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


def linear_combination(arguments: dict[str, Any]) -> None:
    """A coefficient for each of the tensors that are combined."""
    input, coefficients = arguments["input"], arguments["coefficients"]
    if coefficients.dim() != 2 or not input.dim() or input.shape[0] != coefficients.shape[1]:
        refuse("_compute_linear_combination", arguments, "input", "coefficients")


def _without_trace(wider: dict[torch.dtype, torch.dtype]) -> dict[torch.dtype, torch.dtype]:
    """Those of which the host has no trace: older releases have none of halves."""
    found = {}
    for dtype, wide in wider.items():
        try:
            torch.trace(torch.zeros(1, 1, dtype=dtype, device="cpu"))
        except NotImplementedError:
            found[dtype] = wide
    return found


row("_linalg_svd", host=_svd, checks=(svd_driver,), wrong_on_meta=True)
row("linalg_eig", host=_last_in_rows, wrong_on_meta=True)
row("linalg_ldl_solve", checks=(ldl_solve, pivots))
row("linalg_lstsq", host=_lstsq, checks=(lstsq_driver,))
row("linalg_lu", host=_lu)
row("linalg_lu_factor_ex", host=_lu_factor_ex)
row("linalg_lu_solve", checks=(pivots,), wrong_on_meta=True)
row("lu_unpack", checks=(pivots,))
row(
    "linalg_vector_norm",
    dtypes=Only(AND_COMPLEX | {torch.complex32}, "norm_cuda"),
    wider=COMPLEX_HALVES,
)
row("_compute_linear_combination", checks=(linear_combination,))
row("trace", wider=Wider({**COMPLEX_HALF, **_without_trace(HALVES), torch.bool: torch.uint8}))
row("tril[_]", "triu[_]", checks=(few_dims,))
row("tril_indices", "triu_indices", none_if_empty=True)
row(
    "triangular_solve",
    layout="SparseCsr",
    same_device=(
        "self",
        "A",
        "Expected b and A to be on the same device, but found b on {} and A on {} instead.",
    ),
)
