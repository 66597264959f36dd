"""Process groups of each rank that is a thread: it knows its own, and the threads that it makes do.

PyTorch keeps those of a process in its modules, and in C++.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from simgpu._distributed.groups import threads
from simgpu._util.patching import Action, Patch, Patches, Row


class _Groups(distributed_c10d._World):
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
    setattr(_Groups, _name, _map(_name))


class _PerThread(threading.local):
    groups: _Groups | None = None


_per_thread = _PerThread()


class _GroupsOfThread:
    """`distributed_c10d._world`: that of the rank which asks, PyTorch's own for other threads."""

    def __init__(self, stock: Any) -> None:
        vars(self)["_stock"] = stock

    def __getattr__(self, name: str) -> Any:
        return getattr(_per_thread.groups or self._stock, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_per_thread.groups or self._stock, name, value)


def begin() -> None:
    """Give the calling thread groups of its own, none so far."""
    _per_thread.groups = _Groups()


def life() -> int:
    """Which default group of the calling thread, counted from 1, is in force."""
    groups = _per_thread.groups
    return 0 if groups is None else groups.lives


def end() -> None:
    """Destroy all groups of the calling thread."""
    try:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    finally:
        _unregister_all: Callable[[], None] = vars(c10d)["_unregister_all_process_groups"]
        _unregister_all()
        _per_thread.groups = None


def copy_rank() -> Callable[[], None]:
    """Returns what makes another thread belong to the calling thread's rank and its groups."""
    rank, carrier, groups = threads.rank, threads.carrier, _per_thread.groups

    def adopt() -> None:
        threads.rank, threads.carrier, _per_thread.groups = rank, carrier, groups
        register: Callable[[str, Any], None] = vars(c10d)["_register_process_group"]
        for group, name in ({} if groups is None else groups.pg_names).items():
            register(name, group)

    return adopt


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
