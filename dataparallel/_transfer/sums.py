"""Sums of tensors on different devices, one by one or in buckets.

Many tensors come as columns: `columns[d][i]` is tensor `i` on device `d`, and row `i` is what the
devices have of it. What may change here is the order in which a sum is taken, and when NCCL
takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dataparallel._devices import CPU
from dataparallel._transfer import nccl, transforms
from dataparallel._transfer.buckets import Layout, flatten, unflatten


def sum_to(inputs: list[torch.Tensor], root: int) -> torch.Tensor:
    """The sum of `inputs` on the device of `inputs[root]`, from the root on in ascending order."""
    if len(inputs) == 1:
        return inputs[0]
    if nccl.usable(inputs):
        return nccl.reduce(inputs, root)
    device = inputs[root].device
    others = [tensor for index, tensor in enumerate(inputs) if index != root]
    non_blocking = device != CPU
    first = others[0]
    landed = first.to(device, non_blocking=non_blocking)
    result = inputs[root] + landed
    # Within a transform what is added may have more dimensions than the sum so far.
    within = transforms.active(inputs)
    add = torch.add if within else torch.Tensor.add_
    # Later copies are written over the first: each waits for what both its devices have to do, the
    # addition of the one before among it, so memory of its own would not make it begin earlier.
    again = not within and landed is not first and not first.is_nested
    for other in others[1:]:
        if again and other.device != device and _alike(other, first):
            moved = landed.copy_(other, non_blocking=non_blocking)
        else:
            moved = other.to(device, non_blocking=non_blocking)
        result = add(result, moved)
    return result


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape are dense and of one dtype."""
    return one.dtype == other.dtype and one.layout is other.layout is torch.strided


def densify_mixed_rows(columns: Sequence[list[Any]]) -> None:
    """Replace, in `columns`, sparse tensors by dense ones where another device's is dense."""
    for index, row in enumerate(zip(*columns, strict=True)):
        strided = [tensor.layout is torch.strided for tensor in row if tensor is not None]
        if any(strided) and not all(strided):
            for column in columns:
                if column[index] is not None and column[index].layout is not torch.strided:
                    column[index] = column[index].to_dense()


def sum_columns(
    columns: Sequence[Sequence[torch.Tensor]],
    layout: Layout,
    add: Callable[[list[torch.Tensor]], torch.Tensor],
    results: list[Any],
) -> None:
    """Sum the rows that `layout` names, each bucket at once, and put the sums into `results`.

    `add` sums one tensor of each column.
    """
    for bucket in layout.buckets:
        unflatten(add([flatten(column, bucket) for column in columns]), bucket, results)
    for index in layout.unbucketed:
        results[index] = add([column[index] for column in columns])
