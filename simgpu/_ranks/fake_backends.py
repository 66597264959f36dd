"""Backends of process groups for ranks that are threads, in place of PyTorch's in C++.

Nothing has to be connected: what would be ProcessGroupGloo and ProcessGroupNCCL in C++ is a
FakeProcessGroup, and the collectives meet in memory (`thread_transport`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from simgpu._distributed import c10d_kernels, groups, nccl
from simgpu._util.patching import Action, Patch, Patches, Row

# Parts of a group, where ranks are threads: there is nothing to split, and no connection to make.
#
# C++ would have each backend of the group split, which the fakes of threads cannot. The members
# of a part find each other by a name that they agree on, as those of processes do
# (`simgpu._distributed.groups`).

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
        point = groups.meeting_point(self, ranks)
        if self.rank() not in ranks:
            return None
        rank, size = list(ranks).index(self.rank()), len(ranks)
        store = c10d.PrefixStore(f"{point}/", self.get_group_store())
        part = c10d.ProcessGroup(store, rank, size)
        kind = _TYPES.NCCL if groups.find(self).kind == "nccl" else _TYPES.GLOO
        wanted = {device.type for device in device_types or self._device_types}
        for device in self._device_types:
            if device.type in wanted:
                of_device = _TYPES.GLOO if device.type == "cpu" else kind
                backend = _FakeProcessGroup._create_internal(rank, size)
                part._register_backend(device, of_device, backend)
        part._set_default_backend(kind)
        groups.rename(part, point, group_name or point)
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

_SPLITS_PATCHES: tuple[Row, ...] = (
    Patch("torch._C._distributed_c10d.ProcessGroup", "split_group", wrap=_split_group, why=_WHY),
    Patch(_FAKE, "supports_splitting", value=True, why=_WHY),
    Patch(_FAKE, "split", value=_part_of_backend, why=_WHY),
    Patch(_FAKE, "perform_nocolor_split", value=lambda self, device: None, why=_WHY),
    Patch(f"{_FAKE}.Options", "__deepcopy__", value=_copied, why="C++ has no copy of it"),
)


class _Named(type):
    """A class of backends all of whose objects are C++'s FakeProcessGroup."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _FakeProcessGroup)


def _fake(stock: Any) -> type:
    """A class in the place of ProcessGroupNCCL or ProcessGroupGloo: there is nothing to connect."""

    class ProcessGroup(metaclass=_Named):
        Options = stock.Options
        _Options = getattr(stock, "_Options", None)

        def __new__(cls, store: Any, rank: int, size: int, *_: Any, **__: Any) -> Any:
            backend = _FakeProcessGroup._create_internal(rank, size)
            if issubclass(stock, nccl.ProcessGroupNCCL):
                groups.nccl_fakes.add(backend)
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
    library: Any = c10d_kernels.register("CPU")
    patches.then(library._destroy)


_WHY_FAKE = "ranks of one process meet in memory, and connect to no process"
_C10D = "torch.distributed.distributed_c10d"
# What groups of gloo are in place of it: NCCL's are NCCL or CUSTOM, and each sort has its own.
_GLOO, _OTHER = _TYPES.GLOO, _TYPES.UCC

_BACKENDS_PATCHES: tuple[Row, ...] = (
    *(
        Patch(module, name, wrap=_fake, needs=name, why=_WHY_FAKE)
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
            ("_set_default_timeout", lambda self, timeout: None),  # no wait takes so long
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


PATCHES: tuple[Row, ...] = (*_BACKENDS_PATCHES, *_SPLITS_PATCHES)
