"""Check the indices of sparse tensors before a CPU kernel uses them as positions.

PyTorch checks what a sparse tensor is made of only where it is asked to (`check_invariants`), and
its CPU kernels read and write wherever indices say. On a GPU the result is undefined; here every
computation on such a tensor raises. What is checked is what keeps a kernel within its memory: that
columns are sorted, for instance, is the caller's business, as on CUDA.
"""

from __future__ import annotations

import torch

from simgpu._native.dlpack_relabel import host_alias
from simgpu._runtime import executors

Tensor = torch.Tensor
_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
_BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)


def check(tensor: Tensor) -> None:
    """Raise RuntimeError unless every index of a sparse tensor is within its size."""
    executors.finish()
    if tensor.layout == torch.sparse_coo:
        _check_coo(tensor)
    else:
        _check_compressed(tensor)


def _check_coo(tensor: Tensor) -> None:
    indices = host_alias(tensor._indices())
    if not indices.numel():
        return
    low, high = (bound.tolist() for bound in indices.aminmax(dim=1))
    for dim, size in enumerate(tensor.shape[: len(low)]):
        if low[dim] < 0 or high[dim] >= size:
            raise _wrong(
                tensor, f"indices from {low[dim]} to {high[dim]} in dimension {dim} of size {size}"
            )


def _check_compressed(tensor: Tensor) -> None:
    by_row = tensor.layout in _BY_ROW
    names = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
    compressed, plain = (host_alias(getattr(tensor, name)()) for name in names)
    values = tensor.values()
    batch = compressed.dim() - 1
    block = values.shape[batch + 1 : batch + 3] if tensor.layout in _BLOCKED else (1, 1)
    rows, columns = (tensor.shape[batch + i] // max(block[i], 1) for i in range(2))
    lines, size = (rows, columns) if by_row else (columns, rows)
    count = plain.shape[-1]
    if compressed.shape[-1] != lines + 1:
        raise _wrong(tensor, f"{names[0]} of shape {tuple(compressed.shape)} for {lines} lines")
    if values.shape[batch] != count:
        raise _wrong(tensor, f"{count} {names[1]} for {values.shape[batch]} values")
    ends = (compressed[..., 0] == 0) & (compressed[..., -1] == count)
    if not bool(ends.all() & (compressed.diff() >= 0).all()):
        raise _wrong(tensor, f"{names[0]} that do not rise from 0 to {count}")
    if plain.numel():
        low, high = (bound.item() for bound in plain.aminmax())
        if low < 0 or high >= size:
            raise _wrong(tensor, f"{names[1]} from {low} to {high} for a size of {size}")


def _wrong(tensor: Tensor, what: str) -> RuntimeError:
    layout = str(tensor.layout).removeprefix("torch.")
    return RuntimeError(
        f"a {layout} tensor of shape {tuple(tensor.shape)} on {tensor.device} has {what}: a kernel "
        "would go past its memory (say check_invariants=True where such a tensor is made)"
    )
