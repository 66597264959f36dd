"""Parts of a group, where ranks are threads: there is nothing to split, and nobody to meet.

C++ would have each backend of the group split, which the stand-ins of threads cannot. The members
of a part find each other by a name that they agree on, as those of processes do
(`simgpu._distributed.splitting`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from simgpu._distributed import communicators, splitting
from simgpu._patches import Patch, Row

_FakeProcessGroup: Any = c10d.FakeProcessGroup
_TYPES: Any = c10d.ProcessGroup.BackendType


def _split_group(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`ProcessGroup.split_group`: the part that this rank is in, or None."""

    @functools.wraps(stock)
    def split(
        self: Any,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> Any:
        point = splitting.meeting_point(self, ranks)
        if self.rank() not in ranks:
            return None
        rank, size = list(ranks).index(self.rank()), len(ranks)
        store = c10d.PrefixStore(f"{point}/", self.get_group_store())
        part = c10d.ProcessGroup(store, rank, size)
        kind = _TYPES.NCCL if communicators.find(self).kind == "nccl" else _TYPES.GLOO
        wanted = {device.type for device in device_types or self._device_types}
        for device in self._device_types:
            if device.type in wanted:
                of_device = _TYPES.GLOO if device.type == "cpu" else kind
                backend = _FakeProcessGroup._create_internal(rank, size)
                part._register_backend(device, of_device, backend)
        part._set_default_backend(kind)
        splitting.rename(part, point, group_name or point)
        part._set_group_desc(group_desc or "")
        return part

    return split


def _part_of_backend(self: Any, store: Any, ranks: Sequence[int], options: Any) -> Any:
    """`Backend.split`, by which newer releases make the group that `new_group` is asked for."""
    if self.rank() not in ranks:
        return None
    return _FakeProcessGroup._create_internal(list(ranks).index(self.rank()), len(ranks))


def _copied(self: Any, _: Any) -> Any:
    """A copy of options, which `split_group` of older releases makes."""
    copy = type(self)()
    for name in ("_timeout", "global_ranks_in_group", "group_name"):
        setattr(copy, name, getattr(self, name))
    return copy


_FAKE = "torch._C._distributed_c10d.FakeProcessGroup"
_WHY = "C++ would split what connects ranks, and those of one process meet in memory"

PATCHES: tuple[Row, ...] = (
    Patch("torch._C._distributed_c10d.ProcessGroup", "split_group", wrap=_split_group, why=_WHY),
    Patch(_FAKE, "supports_splitting", value=True, why=_WHY),
    Patch(_FAKE, "split", value=_part_of_backend, why=_WHY),
    Patch(_FAKE, "perform_nocolor_split", value=lambda self, device: None, why=_WHY),
    Patch(f"{_FAKE}.Options", "__deepcopy__", value=_copied, why="C++ has no copy of it"),
)
