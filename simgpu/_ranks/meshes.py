"""A DeviceMesh of one rank is not equal to that of another one, though they have the same devices.

DTensor keeps, for each mesh, how tensors are moved between placements, with the shapes that they
have on this rank on the way. Ranks of one process have other shapes where the size is not divided
evenly, and would find each other's.
"""

from __future__ import annotations

import functools
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


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch.distributed.device_mesh.DeviceMesh",
        "__init__",
        wrap=_of_a_rank,
        why="what DTensor keeps for a mesh is for one rank, and these are in one process",
    ),
)
