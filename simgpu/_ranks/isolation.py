"""What each rank that is a thread has of its own, and what is replaced in torch for that.

Process groups of Python and C++, random numbers, the environment that torchrun sets, PyTorch's
settings, and the few variables in which it keeps something of one rank. Everything else, such as
other globals of modules, is shared by the ranks, as threads share it.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from simgpu._distributed import kernels, nccl
from simgpu._distributed.communicators import threads
from simgpu._patches import Action, Patch, Patches, Row
from simgpu._ranks import numpy_random, settings, variables

_FakeProcessGroup: Any = c10d.FakeProcessGroup


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


def begin_groups() -> None:
    """Let the calling thread have groups of its own, none so far."""
    _per_thread.groups = _Groups()


def life() -> int:
    """Which default group of the calling thread, counted from 1, is in force."""
    groups = _per_thread.groups
    return 0 if groups is None else groups.lives


def end_groups() -> None:
    """Destroy all groups of the calling thread."""
    try:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    finally:
        _unregister_all: Callable[[], None] = vars(c10d)["_unregister_all_process_groups"]
        _unregister_all()
        _per_thread.groups = None


def rank_of_thread() -> Callable[[], None]:
    """What lets another thread be of the calling thread's rank, with the same process groups."""
    rank, carrier, groups = threads.rank, threads.carrier, _per_thread.groups

    def adopt() -> None:
        threads.rank, threads.carrier, _per_thread.groups = rank, carrier, groups
        register: Callable[[str, Any], None] = vars(c10d)["_register_process_group"]
        for group, name in ({} if groups is None else groups.pg_names).items():
            register(name, group)

    return adopt


class State:
    """What one rank has in variables of the process, kept while others run."""

    def __init__(self, rank: int, count: int, of_a_rank: bool = True) -> None:
        self._variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "0",
        }
        self._numpy = numpy_random.Kept()
        self.save()
        if of_a_rank:
            self._numpy = self._numpy.of_a_rank()
            self._noted = variables.of_a_rank()

    def save(self) -> None:
        """Note generators and variables, which another rank is about to use."""
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy = numpy_random.Kept()
        self._noted = variables.noted()
        self._settings = settings.noted()

    def restore(self) -> None:
        """Put all in place."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        self._numpy.put_back()
        variables.put_back(self._noted)
        settings.put_back(self._settings)
        os.environ.update(self._variables)


class Surroundings(State):
    """The same of the thread that starts a world: what it had is there again afterwards.

    So is the hook for errors, which each `init_process_group` wraps, to print the rank.
    """

    def __init__(self) -> None:
        super().__init__(0, 1, of_a_rank=False)
        self._before = {name: os.environ.get(name) for name in self._variables}
        self._excepthook = sys.excepthook

    def restore(self) -> None:
        super().restore()
        sys.excepthook = self._excepthook
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Named(type):
    """A class of backends all of whose objects are C++'s FakeProcessGroup."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _FakeProcessGroup)


def _stand_in(stock: Any) -> type:
    """A class in the place of ProcessGroupNCCL or ProcessGroupGloo: there is nothing to connect."""

    class ProcessGroup(metaclass=_Named):
        Options = stock.Options
        _Options = getattr(stock, "_Options", None)

        def __new__(cls, store: Any, rank: int, size: int, *_: Any, **__: Any) -> Any:
            backend = _FakeProcessGroup._create_internal(rank, size)
            if issubclass(stock, nccl.ProcessGroupNCCL):
                nccl.stand_ins.add(backend)
            return backend

    return ProcessGroup


def _is_gloo(value: Any) -> bool:
    return isinstance(value, _TYPES) and value == _GLOO


def _not_gloo(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method of ProcessGroup that takes a type of backend."""

    @functools.wraps(stock)
    def call(self: Any, *args: Any) -> Any:
        return stock(self, *(_OTHER if _is_gloo(arg) else arg for arg in args))

    return call


def _not_wrapped(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def wrapped(wrapped_pg: Any, *_: Any, **__: Any) -> Any:
        return wrapped_pg

    return wrapped


def _without_cache(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        self.cache_enabled = False

    return __init__


def _isolate(patches: Patches) -> None:
    isolate: Callable[[bool], object] = vars(c10d)["_set_thread_isolation_mode"]
    isolate(True)
    patches.then(lambda: isolate(False))


def _take_tensors_of_the_host(patches: Patches) -> None:
    library: Any = kernels.register("CPU")
    patches.then(library._destroy)


_WHY_STAND_IN = "ranks of one process meet in memory, and connect to nobody"
_C10D = "torch.distributed.distributed_c10d"
_TYPES: Any = c10d.ProcessGroup.BackendType
# What groups of gloo are in place of it: NCCL's are NCCL or CUSTOM, and each sort has its own.
_GLOO, _OTHER = _TYPES.GLOO, _TYPES.UCC
_FAKE = "torch._C._distributed_c10d.FakeProcessGroup"

PATCHES: tuple[Row, ...] = (
    Patch(_C10D, "_world", wrap=_GroupsOfThread, why="each rank, a thread, has groups of its own"),
    *(
        Patch(module, name, wrap=_stand_in, needs=name, why=_WHY_STAND_IN)
        for name in (
            *("ProcessGroupGloo", "ProcessGroupNCCL"),
            *("ProcessGroupNCCL2", "ProcessGroupNCCLLazy"),  # of newer releases
        )
        for module in (_C10D, "torch.distributed")
    ),
    Patch(
        _C10D,
        "_create_process_group_wrapper",
        wrap=_not_wrapped,
        needs="_create_process_group_wrapper",
        why="debug mode compares the calls of ranks through gloo; here they are compared always",
    ),
    *(
        Patch(
            "torch._C._distributed_c10d.ProcessGroup",
            name,
            wrap=_not_gloo,
            why="C++ takes the backend of a group of gloo for a ProcessGroupGloo without looking",
        )
        for name in ("_set_default_backend", "_register_backend")
    ),
    *(
        Patch(_FAKE, name, value=value, why="as NCCL's class answers")
        for name, value in (
            ("_set_sequence_number_for_group", lambda self: None),
            ("supports_coalescing", True),
            ("_set_default_timeout", lambda self, timeout: None),  # nobody waits for so long
            ("_add_ephemeral_timeout", lambda self, timeout: None),
            ("_group_start", staticmethod(lambda: None)),
            ("_group_end", staticmethod(lambda: None)),
        )
    ),
    Patch(
        _C10D,
        "_maybe_attach_flight_recorder",
        value=lambda *_: None,
        needs="_maybe_attach_flight_recorder",
        why="it takes the ranks of one process for one rank that changes its number, and warns",
    ),
    Patch(
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "__init__",
        wrap=_without_cache,
        why='its cache is shared by threads, in each of which "cuda" is another device',
    ),
    Patch(
        "torch.distributed.c10d_logger._c10d_logger",
        "disabled",
        True,
        needs="disabled",
        why="each rank would log the error that its world raises, and pytest shows it again",
    ),
    Action(
        "the registry that C++ has of process groups",
        run=_isolate,
        why="groups of different ranks have the same names",
    ),
    Action(
        "the CPU kernels of the c10d operators",
        run=_take_tensors_of_the_host,
        why="tensors of the host meet in memory, too",
    ),
)
