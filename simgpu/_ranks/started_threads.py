"""Threads that a rank makes are of its rank, too: they find its process groups and its stores.

They are tasks of a schedule, as the ranks are, where one is in force. Without a schedule nobody
gives them turns, and what they ask of other ranks is an error (`simgpu._ranks.turns`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from simgpu._distributed.communicators import threads
from simgpu._patches import Patch, Row
from simgpu._ranks import stores, thread_groups


def _of_the_same_rank(stock: Callable[..., None]) -> Callable[..., None]:
    """`Thread.__init__`, with what the calling thread has of its rank."""

    @functools.wraps(stock)
    def __init__(self: threading.Thread, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        if threads.rank is None:
            return
        of_groups, of_stores = thread_groups.rank_of_thread(), stores.place()

        def run() -> None:
            vars(self).pop("run", None)
            of_groups()
            stores.begin(of_stores)
            self.run()

        vars(self)["run"] = run

    return __init__


_WHY = "a thread of a rank is of that rank"
PATCHES: tuple[Row, ...] = (
    Patch("threading.Thread", "__init__", wrap=_of_the_same_rank, why=_WHY),
)
