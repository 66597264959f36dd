"""Checks of values that name places: indices, labels, offsets, lengths, pivots.

Most host kernels look at such values before they use them as places in memory; these are for the
ones that do not. Which operators they are for stands in `argument_checks.CHECKS`; each takes the
arguments of a call by their names, and raises RuntimeError, or IndexError where PyTorch raises it
for the same mistake elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._native.dlpack_relabel import host_alias

Tensor = torch.Tensor


def segment_reduce(arguments: dict[str, Any]) -> None:
    """Segments lie within the data; the kernel looks at neither offsets nor unsafe lengths."""
    data: Tensor = arguments["data"]
    axis = arguments.get("axis", 0)
    for name in ("offsets", "lengths"):
        segments = arguments.get(name)
        if segments is None:
            continue
        length = data.shape[axis] if -data.dim() <= axis < data.dim() else -1
        host = host_alias(segments)
        if name == "lengths":
            fits = segments.dim() > 0 and bool(((host.sum(-1) <= length) & (host >= 0).all()).all())
        else:
            inside = ((host >= 0) & (host <= length)).all() & (host.diff() >= 0).all()
            fits = segments.dim() > 0 and segments.shape[-1] > 0 and bool(inside)
        if not fits or segments.shape[:-1] != data.shape[: segments.dim() - 1]:
            raise RuntimeError(
                f"segment_reduce: {name} of shape {tuple(segments.shape)} must be segments of "
                f"dimension {axis} of data, whose shape is {tuple(data.shape)}"
            )


def pivots(arguments: dict[str, Any]) -> None:
    """Pivots name rows of their matrix; LAPACK swaps whatever rows it is told."""
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


def converted_indices(arguments: dict[str, Any]) -> None:
    """Row indices within their matrix, or row ends that rise to the number of columns given."""
    compressed = arguments.get("crow_indices")
    given = host_alias(arguments["self"] if compressed is None else compressed)
    if compressed is None:
        low, high = 0, arguments["size"] - 1
        fits = True
    else:
        low, high = 0, arguments["col_indices"].shape[-1]
        fits = bool((given[..., 0] == low).all() & (given[..., -1] == high).all())
        fits = fits and bool((given.diff() >= 0).all())
    if not fits or (given.numel() and not bool(((given >= low) & (given <= high)).all())):
        name = "indices" if compressed is None else "crow_indices that rise"
        raise RuntimeError(f"expected {name} from {low} to {high}, got {given.tolist()}")
