"""Stores of torch.distributed for ranks that are threads, and the threads that a rank starts.

`init_process_group` without a store makes a TCPStore, whose server waits for its clients: among
threads of which one runs at a time that would be for ever. Here it is a part of the one store that
the world has in memory, under the address that it was asked for.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d

from simgpu._core.world import Rank, this_rank
from simgpu._explore.schedules.scheduler import PATIENT
from simgpu._ranks import groups
from simgpu._util.naming import plural
from simgpu._util.patching import Patch, Row

_PrefixStore: Any = c10d.PrefixStore
_stock_add: Callable[[Any, str, int], int] = c10d.Store.add
_stock_check: Callable[[Any, list[str]], bool] = c10d.Store.check
_stock_wait: Callable[..., None] = c10d.Store.wait


class TCPStore(_PrefixStore):  # type: ignore[misc]
    """A TCPStore of a rank: the keys of one address in the memory of its world."""

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: Any = None,
        wait_for_workers: bool = True,
        **_: Any,
    ) -> None:
        rank = this_rank()
        assert rank is not None, "only a rank makes one"
        self.host, self.port = host_name, port
        # A server ends with the groups that it was made for: the next ones find no old keys.
        super().__init__(f"{groups.life()} tcp://{host_name}:{port}", rank.store)
        times = _stock_add(self, f"joined by {rank.number}", 1)
        if is_master and wait_for_workers and world_size is not None and world_size > 0:
            self._wait_for_others(rank, world_size, times)

    def _wait_for_others(self, me: Rank, wanted: int, times: int) -> None:
        """Until so many ranks have come as often as this one has."""

        def ready() -> bool:
            came = [_stock_add(self, f"joined by {rank}", 0) for rank in range(me.count)]
            return sum(often >= times for often in came) >= wanted

        me.scheduler.wait(
            me.number,
            ready,
            f"{plural(wanted, 'rank')} at the store tcp://{self.host}:{self.port}",
        )


def _tcp_store(stock: Any) -> Any:
    """TCPStore: one in memory for a rank, PyTorch's own for all other threads."""

    class _Class(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, (stock, TCPStore))

    class _TCPStore(metaclass=_Class):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return (stock if this_rank() is None else TCPStore)(*args, **kwargs)

    functools.update_wrapper(_TCPStore, stock, updated=())
    return _TCPStore


def _waiting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Store that waits for keys, the first argument: others run until they are set.

    A short time-out comes where no rank can go on. A long one is for emergencies, and here it is
    none: that no rank can go on is an error at once.
    """

    @functools.wraps(stock)
    def call(self: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        rank = this_rank()
        if rank is None:
            return stock(self, keys, *args, **kwargs)
        names: list[Any] = [keys] if isinstance(keys, (str, bytes)) else list(keys)
        limit = next(iter((*args, *kwargs.values())), self.timeout)
        limit = limit.total_seconds() if isinstance(limit, timedelta) else PATIENT
        what = f"{', '.join(map(repr, names))} in a store"
        seconds = limit if limit < PATIENT else None
        if rank.scheduler.wait(rank.number, lambda: _stock_check(self, names), what, seconds):
            return stock(self, keys, *args, **kwargs)
        return _stock_wait(self, names, timedelta(milliseconds=1))  # which raises, in its words

    return call


def _asking(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Store that a rank may call again and again, until another has changed it."""

    @functools.wraps(stock)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        rank = this_rank()
        if rank is not None:
            rank.scheduler.ask(rank.number, f"a store, by {stock.__name__}{args}")
        return stock(self, *args, **kwargs)

    return call


_STORE = "torch._C._distributed_c10d.Store"

_STORES_PATCHES: tuple[Row, ...] = (
    *(
        Patch(
            module,
            "TCPStore",
            wrap=_tcp_store,
            needs="TCPStore",
            why="its server waits for other ranks, which are threads that wait for this one",
        )
        for module in ("torch.distributed", "torch.distributed.rendezvous")
    ),
    *(
        Patch(_STORE, name, wrap=_waiting, needs=name, why="others run while a rank waits for keys")
        for name in ("get", "wait", "multi_get")
    ),
    *(
        Patch(_STORE, name, wrap=_asking, needs=name, why="others run between a rank's questions")
        for name in ("add", "check", "compare_set", "num_keys", "queue_len")
    ),
)


# Threads that a rank makes belong to its rank, too: they find its process groups and its stores.
#
# They are tasks of a schedule, as the ranks are, where one is active. Without a schedule nothing
# gives them turns, and what they ask of other ranks is an error (`simgpu._ranks.rank_scheduler`).


def _of_the_same_rank(stock: Callable[..., None]) -> Callable[..., None]:
    """`Thread.__init__`, with what the calling thread has of its rank."""

    @functools.wraps(stock)
    def __init__(self: threading.Thread, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        rank = this_rank()
        if rank is None:
            return

        def run() -> None:
            vars(self).pop("run", None)
            groups.join(rank)
            self.run()

        vars(self)["run"] = run

    return __init__


_WHY = "a thread of a rank belongs to that rank"
_STARTED_THREADS_PATCHES: tuple[Row, ...] = (
    Patch("threading.Thread", "__init__", wrap=_of_the_same_rank, why=_WHY),
)


PATCHES: tuple[Row, ...] = (*_STORES_PATCHES, *_STARTED_THREADS_PATCHES)
