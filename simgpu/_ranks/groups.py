"""What torch.distributed has for a rank that is a thread: groups, backends, stores, threads.

A rank knows its own groups, and so do the threads that it makes; PyTorch keeps those of a process
in its modules, and in C++. No rank has to be connected to another one: collectives meet in memory
(`simgpu._distributed.thread_transport`), and so do the keys of stores.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from simgpu._core.world import Rank, set_rank, this_rank
from simgpu._distributed import c10d_kernels, groups, nccl
from simgpu._explore.schedules.scheduler import PATIENT
from simgpu._util.naming import plural
from simgpu._util.patching import Patches, Table

PATCHES = Table()
_C10D = "torch.distributed.distributed_c10d"
_GROUP, _FAKE, _STORE = (
    f"torch._C._distributed_c10d.{name}" for name in ("ProcessGroup", "FakeProcessGroup", "Store")
)
_WHY_SPLIT = "C++ would split connections between ranks, and those of one process have none"


class Groups(distributed_c10d._World):
    """The process groups that one rank knows: PyTorch's own class keeps them in its module."""

    def __init__(self) -> None:
        super().__init__()
        self._own: dict[str, Any] = {name: {} for name in _MAPS}
        self.lives = 0
        """How many default groups there were: later ones have the same names as the first."""

    @property
    def default_pg(self) -> Any:
        return self._default_pg

    @default_pg.setter
    def default_pg(self, value: Any) -> None:
        self._default_pg = value
        self.lives += value is not None

    group_count = 0  # which is a property of the other class


# Those that PyTorch's class keeps in variables of the module.
_MAPS = tuple(
    name
    for name, value in vars(distributed_c10d._World).items()
    if isinstance(value, property) and isinstance(vars(distributed_c10d).get(f"_{name}"), dict)
)


for _name in _MAPS:
    setattr(Groups, _name, property(functools.partial(lambda name, self: self._own[name], _name)))


@PATCHES.wrap(f"{_C10D}._world", why="each rank, a thread, has groups of its own")
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


@PATCHES.action(
    "the registry that C++ has of process groups",
    why="groups of different ranks have the same names",
)
def _isolate(patches: Patches) -> None:
    isolate: Callable[[bool], object] = vars(c10d)["_set_thread_isolation_mode"]
    isolate(True)
    patches.then(lambda: isolate(False))


# Backends: what would be ProcessGroupGloo and ProcessGroupNCCL in C++, which connect processes, is
# a FakeProcessGroup.
#
# C++ would have each backend of a group split, which the fakes cannot. The members of a part find
# each other by a name that they agree on, as those of processes do (`simgpu._distributed.groups`).

_FakeProcessGroup: Any = c10d.FakeProcessGroup
_TYPES: Any = c10d.ProcessGroup.BackendType


@PATCHES.around(f"{_GROUP}.split_group", why=_WHY_SPLIT)
def _split_group(
    _: Callable[..., Any], self: Any, ranks: Sequence[int], *args: Any, **kwargs: Any
) -> Any:
    """The part that this rank is in, or None."""
    asked = groups.SplitOptions(*args, **kwargs)
    point = groups.meeting_point(self, ranks)
    if self.rank() not in ranks:
        return None
    rank, size = list(ranks).index(self.rank()), len(ranks)
    store = c10d.PrefixStore(f"{point}/", self.get_group_store())
    part = c10d.ProcessGroup(store, rank, size)
    kind = _TYPES.NCCL if groups.find(self).kind == "nccl" else _TYPES.GLOO
    wanted = {device.type for device in asked.device_types or self._device_types}
    for device in self._device_types:
        if device.type in wanted:
            of_device = _TYPES.GLOO if device.type == "cpu" else kind
            backend = _FakeProcessGroup._create_internal(rank, size)
            part._register_backend(device, of_device, backend)
    part._set_default_backend(kind)
    groups.rename(part, point, asked.group_name or point)
    part._set_group_desc(asked.group_desc or "")
    return part


@PATCHES.replace(f"{_FAKE}.split", why=_WHY_SPLIT)
def _part_of_backend(self: Any, store: Any, ranks: Sequence[int], options: Any) -> Any:
    """`Backend.split`, by which newer releases make the group that `new_group` is asked for."""
    if self.rank() not in ranks:
        return None
    return _FakeProcessGroup._create_internal(list(ranks).index(self.rank()), len(ranks))


@PATCHES.replace(f"{_FAKE}.Options.__deepcopy__", why="C++ has no copy of it")
def _copied(self: Any, _: Any) -> Any:
    """A copy of options, which `split_group` of older releases makes."""
    return groups.copy_options(self, type(self)())


PATCHES.add(f"{_FAKE}.supports_splitting", value=True, why=_WHY_SPLIT)
PATCHES.add(f"{_FAKE}.perform_nocolor_split", value=lambda self, device: None, why=_WHY_SPLIT)
for _name, _value in {
    "_set_sequence_number_for_group": lambda self: None,
    "supports_coalescing": True,
    "_set_default_timeout": lambda self, timeout: None,  # no wait takes so long
    "_add_ephemeral_timeout": lambda self, timeout: None,
    "_group_start": staticmethod(lambda: None),
    "_group_end": staticmethod(lambda: None),
}.items():
    PATCHES.add(f"{_FAKE}.{_name}", value=_value, why="answers as NCCL's class does")
PATCHES.add(
    f"{_C10D}._create_process_group_wrapper",
    value=lambda wrapped_pg, *_, **__: wrapped_pg,
    optional=True,
    why="debug mode compares the calls of ranks by gloo; here they are always compared",
)
PATCHES.add(
    f"{_C10D}._maybe_attach_flight_recorder",
    value=lambda *_: None,
    optional=True,
    why="it takes the ranks of one process for one rank that changes its number, and warns",
)


class _InstancesOf(type):
    """A class in the place of another one: it makes groups of these `kinds`."""

    kinds: tuple[Any, ...]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.kinds)


@PATCHES.wrap(
    *(
        f"{module}.{name}"
        for name in ("ProcessGroupGloo", "ProcessGroupNCCL", *nccl.NEWER)
        for module in (_C10D, "torch.distributed")
    ),
    optional=True,
    why="ranks of one process exchange data in memory, without connections",
)
def _fake(stock: Any) -> type:
    """A class in the place of ProcessGroupNCCL or ProcessGroupGloo: there is nothing to connect."""

    class ProcessGroup(metaclass=_InstancesOf):
        kinds = (_FakeProcessGroup,)
        Options = stock.Options
        _Options = getattr(stock, "_Options", None)

        def __new__(cls, store: Any, rank: int, size: int, *_: Any, **__: Any) -> Any:
            backend = _FakeProcessGroup._create_internal(rank, size)
            if issubclass(stock, nccl.ProcessGroupNCCL):
                groups.nccl_fakes.add(backend)
            return backend

    return ProcessGroup


@PATCHES.around(
    f"{_GROUP}._set_default_backend",
    f"{_GROUP}._register_backend",
    why="C++ takes the backend of a group of gloo for a ProcessGroupGloo without looking",
)
def _not_gloo(stock: Callable[..., Any], self: Any, *args: Any) -> Any:
    """NCCL's groups are NCCL or CUSTOM, and each sort has its own: those of gloo are UCC."""
    return stock(
        self, *(_TYPES.UCC if isinstance(v, _TYPES) and v == _TYPES.GLOO else v for v in args)
    )


@PATCHES.action(
    "the CPU kernels of the c10d operators", why="CPU tensors are exchanged in memory, too"
)
def _take_tensors_of_the_host(patches: Patches) -> None:
    patches.then(c10d_kernels.register("CPU")._destroy)


_PrefixStore: Any = c10d.PrefixStore
_stock_add: Callable[[Any, str, int], int] = c10d.Store.add
_stock_check: Callable[[Any, list[str]], bool] = c10d.Store.check
_stock_wait: Callable[..., None] = c10d.Store.wait


class TCPStore(_PrefixStore):  # type: ignore[misc]
    """A TCPStore of a rank: the keys of one address in the memory of its world.

    PyTorch's has a server that waits for its clients: among threads of which one runs at a time
    that would be for ever.
    """

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
        super().__init__(f"{life()} tcp://{host_name}:{port}", rank.store)
        times = _stock_add(self, f"joined by {rank.number}", 1)
        if is_master and wait_for_workers and world_size is not None and world_size > 0:
            self._wait_for_others(rank, world_size, times)

    def _wait_for_others(self, me: Rank, wanted: int, times: int) -> None:
        """Until so many ranks have come as often as this one has."""

        def ready() -> bool:
            came = [_stock_add(self, f"joined by {rank}", 0) for rank in range(me.count)]
            return sum(often >= times for often in came) >= wanted

        me.scheduler.wait(
            me.number, ready, f"{plural(wanted, 'rank')} at the store tcp://{self.host}:{self.port}"
        )


@PATCHES.wrap(
    "torch.distributed.TCPStore",
    "torch.distributed.rendezvous.TCPStore",
    optional=True,
    why="its server waits for other ranks, which are threads that wait for this one",
)
def _tcp_store(stock: Any) -> Any:
    """TCPStore: one in memory for a rank, PyTorch's own for all other threads."""

    class _TCPStore(metaclass=_InstancesOf):
        kinds = (stock, TCPStore)

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return (stock if this_rank() is None else TCPStore)(*args, **kwargs)

    functools.update_wrapper(_TCPStore, stock, updated=())
    return _TCPStore


@PATCHES.around(
    *(f"{_STORE}.{name}" for name in ("get", "wait", "multi_get")),
    optional=True,
    why="others run while a rank waits for keys",
)
def _wait_for_keys(
    stock: Callable[..., Any], self: Any, keys: Any, *args: Any, **kwargs: Any
) -> Any:
    """A short time-out comes where no rank can go on.

    A long one is for emergencies, and here it is none: that no rank can go on is an error at once.
    """
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


@PATCHES.around(
    *(f"{_STORE}.{name}" for name in ("add", "check", "compare_set", "num_keys", "queue_len")),
    optional=True,
    why="others run between a rank's questions, which it may ask in a loop",
)
def _ask_store(stock: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    rank = this_rank()
    if rank is not None:
        rank.scheduler.ask(rank.number, f"a store, by {stock.__name__}{args}")
    return stock(self, *args, **kwargs)


@PATCHES.around("threading.Thread.__init__", why="a thread of a rank belongs to that rank")
def _of_the_same_rank(
    stock: Callable[..., None], self: threading.Thread, *args: Any, **kwargs: Any
) -> None:
    """A thread that a rank makes finds the rank's process groups and stores.

    It is a task of a schedule, as the ranks are, where one is active. Without a schedule nothing
    gives it turns, and what it asks of other ranks is an error (`simgpu._ranks.rank_scheduler`).
    """
    stock(self, *args, **kwargs)
    rank = this_rank()
    if rank is None:
        return

    def run() -> None:
        vars(self).pop("run", None)
        join(rank)
        self.run()

    vars(self)["run"] = run
