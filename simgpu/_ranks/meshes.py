"""What DTensor keeps for a DeviceMesh is for one rank, and for one world.

It keeps how an operator is sharded, and how tensors are moved between placements, with the shapes
that they have on this rank on the way. Ranks of one process have other shapes where the size is not
divided evenly, and would find each other's: the mesh of one rank is not equal to that of another
one, though they have the same devices. That of the same rank of a later world is, in which
operators may be sharded by other rules (as in `context_parallel`): so a rank forgets at its end.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from simgpu._distributed.communicators import threads
from simgpu._patches import Patch, Row


def _of_a_rank(stock: Callable[..., None]) -> Callable[..., None]:
    """`DeviceMesh.__init__`, which notes a thread for the ranks of PyTorch's own tests only."""

    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        if threads.rank is not None:
            self._thread_id, self._hash = threads.rank, None

    return __init__


_TENSOR = "torch.distributed.tensor"
# Functions of PyTorch that clear one cache each.
_CLEARING = ("_clear_python_sharding_prop_cache", "_clear_fast_path_sharding_prop_cache")


def forget_shardings() -> None:
    """Forget how operators were sharded: for all threads in Python, and for this one in C++."""
    if _TENSOR in sys.modules:
        debug = importlib.import_module(f"{_TENSOR}.debug")
        for name in _CLEARING:
            getattr(debug, name, lambda: None)()


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch.distributed.device_mesh.DeviceMesh",
        "__init__",
        wrap=_of_a_rank,
        why="what DTensor keeps for a mesh is for one rank, and these are in one process",
    ),
)
