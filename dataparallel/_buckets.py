"""Many tensors as few: how tensors are laid out in flat buckets, and taken out again.

A bucket holds tensors of one dtype one after the other, each in the order of its own memory, so
that a channels-last weight keeps its strides at the other end. Tensors that have no strides to
speak of (sparse, quantised, nested) are left loose and travel one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

BUCKET_BYTES = 10 * 2**20  # torch/nn/parallel/comm.py, buffer_size


class Slot(NamedTuple):
    """The place of one tensor in a bucket."""

    number: int  # among the tensors that were laid out
    size: torch.Size
    stride: tuple[int, ...]
    offset: int  # in elements
    order: tuple[int, ...] | None  # its dimensions as they lie in memory; None if contiguous


class Layout(NamedTuple):
    """Where each of a list of tensors travels."""

    total: int
    buckets: list[list[Slot]]
    loose: list[int]


def _memory_order(size: torch.Size, stride: tuple[int, ...]) -> tuple[int, ...] | None:
    """The dimensions of a dense tensor, outermost in memory first; None if it has gaps."""
    order = sorted(range(len(size)), key=lambda d: (-stride[d], -size[d]))
    expected = 1
    for d in reversed(order):
        if size[d] == 1:
            continue
        if stride[d] != expected:
            return None
        expected *= size[d]
    return tuple(order)


def _contiguous_stride(size: torch.Size) -> tuple[int, ...]:
    stride = [1] * len(size)
    for d in range(len(size) - 2, -1, -1):
        stride[d] = stride[d + 1] * max(size[d + 1], 1)
    return tuple(stride)


def lay_out(tensors: Sequence[torch.Tensor], bucket_bytes: int = BUCKET_BYTES) -> Layout:
    """Distribute tensors over buckets of at most `bucket_bytes` each (one tensor may be larger)."""
    buckets: list[list[Slot]] = []
    loose: list[int] = []
    open_buckets: dict[torch.dtype, tuple[list[Slot], int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            loose.append(index)
            continue
        size, stride = tensor.shape, tensor.stride()
        order = None
        if not tensor.is_contiguous():
            order = _memory_order(size, stride)
            if order is None:
                stride = _contiguous_stride(size)
        numel, itemsize = tensor.numel(), tensor.element_size()
        slots, used = open_buckets.get(tensor.dtype, (None, 0))
        if slots is None or (used and (used + numel) * itemsize > bucket_bytes):
            slots, used = [], 0
            buckets.append(slots)
        slots.append(Slot(index, size, stride, used, order))
        open_buckets[tensor.dtype] = (slots, used + numel)
    return Layout(len(tensors), buckets, loose)


def subset(layout: Layout, indices: Sequence[int]) -> Layout:
    """The layout of some of the tensors, closed up, in the same buckets."""
    wanted = set(indices)
    buckets = []
    for bucket in layout.buckets:
        slots: list[Slot] = []
        used = 0
        for slot in bucket:
            if slot.number in wanted:
                slots.append(slot._replace(offset=used))
                used += slot.size.numel()
        if slots:
            buckets.append(slots)
    return Layout(layout.total, buckets, [index for index in layout.loose if index in wanted])


def flatten(tensors: Sequence[torch.Tensor], bucket: list[Slot]) -> torch.Tensor:
    """One flat tensor that holds a bucket's tensors: a copy, or a view of a single one."""
    if len(bucket) == 1:
        return _flat(tensors[bucket[0].number], bucket[0].order)
    return torch.cat([_flat(tensors[slot.number], slot.order) for slot in bucket])


def _flat(tensor: torch.Tensor, order: tuple[int, ...] | None) -> torch.Tensor:
    if order is not None:
        tensor = tensor.permute(order)
    # A flag that says "read me conjugated" would be lost with the strides.
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor if tensor.dim() == 1 and tensor.is_contiguous() else tensor.reshape(-1)


def unflatten(flat: torch.Tensor, bucket: list[Slot], outputs: list[torch.Tensor]) -> None:
    """Put the tensors of a flat bucket into their places in `outputs`.

    They share the bucket's memory, yet each has its own version counter: an in-place change of
    one must not spoil what autograd saved of another (comm.cpp, "Version Counter").
    """
    base = flat.storage_offset()
    for slot in bucket:
        outputs[slot.number] = flat.as_strided(slot.size, slot.stride, base + slot.offset).data
