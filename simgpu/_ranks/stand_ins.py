"""What stands in for the backends of process groups, where ranks are threads of one process.

Nothing has to be connected: what would be ProcessGroupGloo and ProcessGroupNCCL in C++ is a
FakeProcessGroup, and the collectives meet in memory (`meeting`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._C import _distributed_c10d as c10d

from simgpu._distributed import backends, kernels, nccl
from simgpu._patches import Action, Patch, Patches, Row

_FakeProcessGroup: Any = c10d.FakeProcessGroup


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
                backends.nccl_stand_ins.add(backend)
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
    *(
        Patch(module, name, wrap=_stand_in, needs=name, why=_WHY_STAND_IN)
        for name in ("ProcessGroupGloo", "ProcessGroupNCCL", *nccl.NEWER)
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
    Action(
        "the CPU kernels of the c10d operators",
        run=_take_tensors_of_the_host,
        why="tensors of the host meet in memory, too",
    ),
)
