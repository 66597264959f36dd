"""`DataParallel(..., cache_parameters=True)`: copies of parameters kept on their devices.

A tensor is sent again when its version counter or its memory has changed, here or at the other end.
What moves no version counter cannot be seen: edits through `.data`, a storage or DLPack, replays of
a CUDA graph, kernels that write running statistics, and on accelerators `torch._foreach_*` and
fused kernels, which optimizers use. For statistics all buffers of a module count as changed with
any one of them (batch norm counts its batches), after a call in which the module was training, and
after any forward in grad mode. For optimizers everything counts as changed after a step of any of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from dataparallel._transfer.buckets import Layout, subset
from dataparallel._transfer.copies import broadcast_laid_out

# A tensor as it was when it was sent: an alias, which keeps its memory from being given to another
# tensor, and its version. None for an inference tensor, whose versions PyTorch does not count.
_Snapshot = tuple[torch.Tensor, int] | None


class _OptimizerSteps:
    """How many steps optimizers have taken since the first cache was made."""

    taken = 0
    watched = False

    @classmethod
    def watch(cls) -> None:
        """Begin to count; a program without a cache pays nothing."""
        if not cls.watched:
            cls.watched = True
            register_optimizer_step_post_hook(cls._one_more)

    @classmethod
    def _one_more(cls, *_: Any) -> None:
        cls.taken += 1


class ParameterCache:
    """The copies on each device. Never changed once it is made, so threads may share it."""

    __slots__ = ("devices", "rows", "snapshots", "steps", "unsettled", "versions")

    def __init__(
        self,
        devices: Sequence[torch.device],
        rows: list[list[torch.Tensor]],
        snapshots: list[_Snapshot],
        unsettled: set[int],
    ) -> None:
        self.devices = list(devices)
        self.rows = rows
        self.snapshots = snapshots
        self.unsettled = unsettled  # what the call that it is made for may write without a trace
        _OptimizerSteps.watch()
        self.steps = _OptimizerSteps.taken
        self.versions = [[copy._version for copy in row] for row in rows[1:]]

    def changed(self, tensors: Sequence[torch.Tensor], count: int) -> set[int]:
        """The tensors whose copies on the first `count` devices are out of date."""
        if self.steps != _OptimizerSteps.taken:
            return set(range(len(tensors)))
        found = set(self.unsettled)
        for index, tensor in enumerate(tensors):
            if not _unchanged(tensor, self.snapshots[index]):
                found.add(index)
        for row, versions in zip(self.rows[1:count], self.versions, strict=False):
            for index, copy in enumerate(row):
                if copy._version != versions[index]:
                    found.add(index)
        return found


def _snapshot(tensor: torch.Tensor) -> _Snapshot:
    return None if tensor.is_inference() else (tensor.data, tensor._version)


def _unchanged(tensor: torch.Tensor, snapshot: _Snapshot) -> bool:
    if snapshot is None or tensor.is_inference():
        return False
    return tensor._version == snapshot[1] and _memory(tensor) == _memory(snapshot[0])


def _memory(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided else 0


def refreshed(
    cache: ParameterCache | None,
    tensors: Sequence[torch.Tensor],
    layout: Layout,
    devices: Sequence[torch.device],
    groups: Sequence[tuple[bool, Sequence[int]]],
) -> ParameterCache:
    """A cache that is up to date for `devices`, which may be fewer than it has.

    `groups` are tensors of which none changes without the others, each with whether the call
    that now begins may change them without a trace.
    """
    unsettled = {index for training, group in groups if training for index in group}
    known = cache is not None and cache.devices[: len(devices)] == list(devices)
    changed = set(range(len(tensors)))
    if cache is not None and known:
        changed = cache.changed(tensors, len(devices))
        for _, group in groups:
            if not changed.isdisjoint(group):
                changed.update(group)
        if not changed and not unsettled:
            return cache
    snapshots = [_snapshot(tensor) for tensor in tensors]
    partial = layout if len(changed) == len(tensors) else subset(layout, sorted(changed))
    # Copies made as inference tensors could not be used, or counted, outside inference mode.
    with torch.inference_mode(False), torch.no_grad():
        rows = broadcast_laid_out(list(tensors), devices, partial)
    if cache is not None:  # of other devices nothing is unchanged
        for row, old in zip(rows[1:], cache.rows[1:], strict=False):
            for index, copy in enumerate(old):
                if index not in changed:
                    row[index] = copy
    return ParameterCache(devices, rows, snapshots, unsettled)
