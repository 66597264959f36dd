"""Flatten many tensors into few buckets before a copy or a sum, and take them out again.

A bucket holds tensors of one dtype one after the other, each in the order of its own memory, so
that a channels-last weight keeps its strides at the other end. Complex tensors travel as pairs of
real numbers, ahead of the real ones of their bucket: a complex number may only begin at an even
offset. Tensors that have no strides to speak of (sparse, quantised, nested) stay unbucketed and
travel one by one, and so do all tensors within a transform (see `transforms`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

BUCKET_BYTES = 10 * 2**20  # torch/nn/parallel/comm.py, buffer_size

# To cut a run takes up to three operators, and each tensor by itself takes two.
_SHORTEST_RUN = 4


class Slot(NamedTuple):
    """The place of one tensor in a bucket."""

    number: int  # among the tensors that were laid out
    size: torch.Size
    stride: tuple[int, ...]
    offset: int  # in elements of the bucket
    order: tuple[int, ...] | None  # its dimensions in the order of memory; None if contiguous
    paired: bool  # complex, and so two elements of the bucket for each of its own

    def elements(self) -> int:
        """How many elements of the bucket it takes."""
        return self.size.numel() * (2 if self.paired else 1)


class Run(NamedTuple):
    """Contiguous tensors one after the other in a bucket that differ only in their first size."""

    offset: int
    elements: int
    trailing: torch.Size  # the sizes that they have in common
    rows: list[int]  # the first size of each
    numbers: list[int]


class Bucket(tuple[Slot, ...]):
    """The slots of one flat tensor, in the order of their offsets."""

    @functools.cached_property
    def plain(self) -> bool:
        """Whether all tensors are contiguous and none is complex."""
        return not any(slot.paired or slot.order is not None for slot in self)

    @functools.cached_property
    def runs(self) -> list[Run | Slot]:
        """The bucket's tensors, in runs where these are long enough to be worth it."""
        found: list[Run | Slot] = []
        for trailing, group in itertools.groupby(self, _common_sizes):
            slots = list(group)
            if trailing is None or len(slots) < _SHORTEST_RUN:
                found += slots
                continue
            elements = sum(slot.elements() for slot in slots)
            rows = [slot.size[0] for slot in slots]
            numbers = [slot.number for slot in slots]
            found.append(Run(slots[0].offset, elements, trailing, rows, numbers))
        return found


def _common_sizes(slot: Slot) -> torch.Size | None:
    """All sizes but the first; None for a tensor that is not cut out of a run."""
    if slot.paired or slot.order is not None or slot.elements() == 0 or not slot.size:
        return None
    return slot.size[1:]


class Layout(NamedTuple):
    """Where each of a list of tensors travels."""

    total: int
    buckets: list[Bucket]
    unbucketed: list[int]


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


def lay_out(tensors: Sequence[torch.Tensor], bucket_bytes: int = BUCKET_BYTES) -> Layout:
    """Distribute tensors over buckets of at most `bucket_bytes` each (one tensor may be larger)."""
    buckets: list[list[Slot]] = []
    unbucketed: list[int] = []
    open_buckets: dict[torch.dtype, tuple[list[Slot], int]] = {}
    # Tensors that can be cut out together are next to each other (see Run).
    alike: dict[torch.Size, list[int]] = {}
    for index, tensor in enumerate(tensors):
        sizes = torch.Size() if tensor.is_nested else tensor.shape[1:]  # a nested one has none
        alike.setdefault(sizes, []).append(index)
    indices: Sequence[int] = [index for group in alike.values() for index in group]
    if any(tensor.is_complex() for tensor in tensors):
        indices = sorted(indices, key=lambda index: not tensors[index].is_complex())
    for index in indices:
        tensor = tensors[index]
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            unbucketed.append(index)
            continue
        size, stride = tensor.shape, tensor.stride()
        order = None
        if not tensor.is_contiguous():
            order = _memory_order(size, stride)
            if order is None:
                stride = torch.empty(size, device="meta").stride()
        paired, dtype, itemsize = tensor.is_complex(), tensor.dtype, tensor.element_size()
        if paired:
            dtype, itemsize = dtype.to_real(), itemsize // 2
        slot = Slot(index, size, stride, 0, order, paired)
        slots, used = open_buckets.get(dtype, (None, 0))
        if slots is None or (used and (used + slot.elements()) * itemsize > bucket_bytes):
            slots, used = [], 0
            buckets.append(slots)
        slots.append(slot._replace(offset=used))
        open_buckets[dtype] = (slots, used + slot.elements())
    return Layout(len(tensors), list(map(Bucket, buckets)), sorted(unbucketed))


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
                used += slot.elements()
        if slots:
            buckets.append(Bucket(slots))
    return Layout(layout.total, buckets, [index for index in layout.unbucketed if index in wanted])


def without_buckets(layout: Layout) -> Layout:
    """The same tensors, all of them unbucketed."""
    bucketed = (slot.number for bucket in layout.buckets for slot in bucket)
    return Layout(layout.total, [], sorted([*bucketed, *layout.unbucketed]))


def flatten(tensors: Sequence[torch.Tensor], bucket: Bucket) -> torch.Tensor:
    """One flat tensor that holds a bucket's tensors: a copy, or a view of a single one."""
    if len(bucket) == 1:
        return _flat(tensors[bucket[0].number], bucket[0])
    if bucket.plain:
        return torch.cat([tensors[slot.number].flatten() for slot in bucket])
    return torch.cat([_flat(tensors[slot.number], slot) for slot in bucket])


def _flat(tensor: torch.Tensor, slot: Slot) -> torch.Tensor:
    if slot.order is not None:
        tensor = tensor.permute(slot.order)
    # A flag that says "read me conjugated" would be lost with the strides.
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if slot.paired:
        tensor = torch.view_as_real(tensor)
    if tensor.dim() == 1 and tensor.is_contiguous():
        return tensor
    return tensor.reshape(-1).contiguous()  # a flat view of a tensor with gaps may have them, too


def unflatten(flat: torch.Tensor, bucket: Bucket, outputs: list[torch.Tensor]) -> None:
    """Put the tensors of a flat bucket into their places in `outputs`.

    They share the bucket's memory, yet each has its own version counter: an in-place change of
    one must not spoil what autograd saved of another (comm.cpp, "Version Counter").
    """
    base = flat.storage_offset()
    for run in bucket.runs:
        if isinstance(run, Run):
            part = flat if run.elements == flat.numel() else flat.narrow(0, *run[:2])
            part = part.view(-1, *run.trailing) if run.trailing else part
            # The one operator that cuts a tensor into parts with version counters of their own.
            pieces = torch.unsafe_split_with_sizes(part, run.rows)
            for number, piece in zip(run.numbers, pieces, strict=True):
                outputs[number] = piece
            continue
        slot = run
        size, stride = slot.size, slot.stride
        if slot.paired:
            size, stride = torch.Size((*size, 2)), (*(2 * step for step in stride), 1)
        part = flat.as_strided(size, stride, base + slot.offset)
        outputs[slot.number] = (torch.view_as_complex(part) if slot.paired else part).data
