"""Process groups of each rank that is a thread: it knows its own, and the threads that it makes do.

PyTorch keeps those of a process in its modules, and in C++.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from simgpu._core.world import Rank, set_rank, this_rank
from simgpu._util.patching import Action, Patch, Patches, Row


class Groups(distributed_c10d._World):
    """The process groups that one rank knows: PyTorch's own class keeps them in its module."""

    def __init__(self) -> None:
        super().__init__()
        self._own: dict[str, Any] = {name: {} for name in _MAPS}
        self._count = 0
        self.lives = 0
        """How many default groups there were: later ones have the same names as the first."""

    @property
    def default_pg(self) -> Any:
        return self._default_pg

    @default_pg.setter
    def default_pg(self, value: Any) -> None:
        self._default_pg = value
        self.lives += value is not None

    @property
    def group_count(self) -> int:
        return self._count

    @group_count.setter
    def group_count(self, value: int) -> None:
        self._count = value


# Those that PyTorch's class keeps in variables of the module.
_MAPS = tuple(
    name
    for name, value in vars(distributed_c10d._World).items()
    if isinstance(value, property) and isinstance(vars(distributed_c10d).get(f"_{name}"), dict)
)


def _map(name: str) -> property:
    return property(lambda self: self._own[name])


for _name in _MAPS:
    setattr(Groups, _name, _map(_name))


class _GroupsOfThread:
    """`distributed_c10d._world`: that of the rank which asks, PyTorch's own for other threads."""

    def __init__(self, stock: Any) -> None:
        vars(self)["_stock"] = stock

    def __getattr__(self, name: str) -> Any:
        rank = this_rank()
        return getattr(self._stock if rank is None else rank.groups, name)

    def __setattr__(self, name: str, value: Any) -> None:
        rank = this_rank()
        setattr(self._stock if rank is None else rank.groups, name, value)


def life() -> int:
    """Which default group of the calling thread, counted from 1, is in force."""
    rank = this_rank()
    return 0 if rank is None else int(rank.groups.lives)


def end() -> None:
    """Destroy all groups of the calling thread."""
    try:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    finally:
        _unregister_all: Callable[[], None] = vars(c10d)["_unregister_all_process_groups"]
        _unregister_all()


def join(rank: Rank) -> None:
    """Make the calling thread belong to a rank, whose groups C++ then finds by name as well."""
    set_rank(rank)
    register: Callable[[str, Any], None] = vars(c10d)["_register_process_group"]
    for group, name in rank.groups.pg_names.items():
        register(name, group)


def _isolate(patches: Patches) -> None:
    isolate: Callable[[bool], object] = vars(c10d)["_set_thread_isolation_mode"]
    isolate(True)
    patches.then(lambda: isolate(False))


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch.distributed.distributed_c10d",
        "_world",
        wrap=_GroupsOfThread,
        why="each rank, a thread, has groups of its own",
    ),
    Action(
        "the registry that C++ has of process groups",
        run=_isolate,
        why="groups of different ranks have the same names",
    ),
)
