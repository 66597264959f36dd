"""`Communicator`: what this rank knows of one process group: members, backends, transport.

It lives as long as the group's Python object, which torch.distributed keeps until
`destroy_process_group`.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch._C import _distributed_c10d as cpp_c10d
from torch.distributed import distributed_c10d as c10d

from simgpu._core import hooks, world
from simgpu._core.hooks import Instrument
from simgpu._distributed import agreement
from simgpu._distributed.collectives import Call
from simgpu._distributed.fake_transport import FakeTransport
from simgpu._distributed.process_transport import ProcessTransport
from simgpu._distributed.works import Pending, Transport, Work, drop_unused, keep_alive_with_outputs
from simgpu._util.naming import DEVICE_TYPE, visible_text
from simgpu.errors import RankLostError, UnsupportedError

# C++ holds its own half of a backend that was made in Python. The Python half, and what it knows,
# lives as long as its group here.

_get_backend: Callable[..., Any] = distributed.ProcessGroup._get_backend
_kinds: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_backends: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
# The replacement of NCCL's backends, where ranks are threads.
nccl_fakes: weakref.WeakSet[Any] = weakref.WeakSet()


def backend_of(group: Any, device: torch.device | str = DEVICE_TYPE) -> Any:
    """The backend that a group has for a sort of devices, out of the wrapper of its debug mode."""
    backend = _get_backend(group, torch.device(device))
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    return backend


def kind_of(group: Any) -> str:
    """The rules that hold in a group: "nccl" or "gloo"."""
    known = _kinds.get(group)
    return known or ("nccl" if backend_of(group).name() == "nccl" else "gloo")


def take_kind(part: Any, whole: Any) -> None:
    """Apply the rules of a group to a part of it, whose backend C++ has made."""
    _kinds[part] = kind_of(whole)


def keep_backend(group: Any, kind: Any, backend: Any) -> None:
    """Keep the Python half of a backend for as long as its group lives, and the rules of NCCL."""
    _backends.setdefault(group, []).append(backend)
    if kind == distributed.ProcessGroup.BackendType.NCCL or backend in nccl_fakes:
        _kinds[group] = "nccl"  # newer releases have CUSTOM ones, too


_Gloo: Any = cpp_c10d.ProcessGroupGloo
_options_of = _Gloo.options.fget  # ProcessGroupNCCL shows others


def copy_options(options: Any, copy: Any, *more: str) -> Any:
    """Make another object of options hold the same: C++ has no copy of it."""
    for name in ("_timeout", "global_ranks_in_group", "group_name", *more):
        setattr(copy, name, getattr(options, name))
    return copy


def copied(options: Any, _: Any = None) -> Any:
    """Other options of gloo, with the same in them."""
    return copy_options(options, _Gloo._Options(), "_devices", "_threads")


def options_of_parts(backends: list[Any]) -> Any:
    """What the parts of a group can be made with, whose backends are these; None if not of gloo.

    C++ hands the options of the whole to its parts, and changes them: after the first split, the
    whole would look for its ranks among those of the part, past the end of the list. A list that
    is not filled reads as memory is, unless the backend is the first one of the process.
    """
    if not all(isinstance(backend, _Gloo) for backend in backends):
        return None
    for backend in backends:
        ranks = backend.options.global_ranks_in_group or range(backend.size())
        _options_of(backend).global_ranks_in_group = list(ranks)
    return copied(_options_of(backends[0]))


class SplitOptions(NamedTuple):
    """The arguments of `ProcessGroup.split_group` but for the ranks of the part."""

    timeout: timedelta | None = None
    opts: Any = None
    group_name: str | None = None
    group_desc: str | None = None
    device_types: Sequence[torch.device] | None = None  # which older releases do not know


_agreed: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_times: weakref.WeakKeyDictionary[Any, Counter[tuple[int, ...]]] = weakref.WeakKeyDictionary()


def meeting_point(whole: Any, ranks: Sequence[int]) -> str:
    """Where the members of the next part with these ranks find each other.

    torch.distributed names a part by how many groups a rank knows, which is another number for
    another rank. NCCL asks for no name, gloo does.
    """
    members = tuple(sorted(ranks))
    times = _times.setdefault(whole, Counter())
    times[members] += 1
    return f"{agreed_name(whole)}:{'_'.join(map(str, members))}:{times[members]}"


def agreed_name(group: Any) -> str:
    """The name of a group that all of its ranks know; of a part, where its members met."""
    name: str = _agreed.get(group, group.group_name)
    return name


def rename(part: Any, met_at: str, name: str | None) -> None:
    """Give a part the name that this rank knows it by, once it has been made."""
    _agreed[part] = met_at
    if name is not None:
        part._set_group_name(name)


class Communicator:
    """One process group, on this rank."""

    def __init__(self, group: Any) -> None:
        backend = backend_of(group)
        self.kind = kind_of(group)
        """The rules that hold: "nccl" or "gloo"."""
        self.takes_host = torch.device("cpu") in group._device_types
        """Whether it has a backend for tensors of the CPU, too; that is gloo."""
        self.name: str = group.group_name
        self.rank: int = group.rank()
        self.size: int = group.size()
        members = c10d._world.pg_group_ranks.get(group)
        self.ranks = list(members) if members else list(range(self.size))
        """The global rank of each member."""
        bound = group.bound_device_id
        self.bound_device: int | None = None if bound is None else bound.index
        """The only device for its tensors, the `device_id` of init_process_group."""
        self.used_devices: dict[int, None] = {}
        """Those that its tensors were on, in this order."""
        self.transport = self._carried_by(group, backend)
        self.owner = world.this_rank()
        """Which rank it belongs to, where ranks are threads of one process."""
        self.ended = _ended.get(group, "")
        """What this rank has done to the group, if it can make no calls any more."""
        self._backend = backend
        self._looks_for_nan = self.kind == "nccl" and agreement.looks_for_nan()
        self.open: set[Work] = set()
        self.coalesced: list[Pending] | None = None
        """The calls since `_start_coalescing`; None outside."""
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._since: dict[str, int] = {}
        self._last: dict[str, Pending] = {}

    def _carried_by(self, group: Any, backend: Any) -> Transport:
        rank = world.this_rank()
        if rank is not None:
            made: Transport = rank.transport(agreed_name(group), self.rank, self.ranks)
            return made
        if isinstance(backend, distributed.ProcessGroupGloo):
            _, store = c10d._world.pg_map.get(group, (None, None))
            return ProcessTransport(backend, self.name, self.ranks, store)
        if isinstance(backend, torch._C._distributed_c10d.FakeProcessGroup):
            return FakeTransport(backend)
        raise UnsupportedError(
            f"collectives of simulated devices go through gloo, and group {self.name!r} has "
            f"{type(backend).__name__} for them: take nccl or gloo"
        )

    def submit(self, call: Call, asynchronous: bool) -> Pending:
        """Begin a call; unless it is asynchronous, it has run when this returns."""
        if self.ended:
            raise RankLostError(f"{call.line}: group {self.name!r} was {self.ended} by this rank")
        call.looks_for_nan = getattr(self._backend, "looks_for_nan", self._looks_for_nan)
        row = call.row
        with self._lock:
            call.number = self._numbers[row] = self._numbers.get(row, 0) + 1
            if not row:
                self._note_device(call)
            previous = self._last.get(row) if asynchronous else None
            pending = Pending(call, None if previous is None else previous.last_open())
            if asynchronous:
                if not isinstance(self.transport, FakeTransport):  # which does not wait
                    pending.copy_inputs()
                self._last[row] = pending
            else:
                call.clone_overlapping_inputs()
            if self.coalesced is not None:
                self.coalesced.append(pending)
        self.transport.submit(pending, awaited=not asynchronous)
        if not asynchronous:
            pending.wait_and_raise(None)
        return pending

    def _note_device(self, call: Call) -> None:
        """Check that all ranks have changed to other devices at the same call, or none of them."""
        call.since = self._since.setdefault(call.device, call.number)
        if call.since > 1 and call.collective is not None:
            name = visible_text(f"{DEVICE_TYPE}:{call.collective.index}")
            since = f"first used in call {call.since}"
            call.add(f", on a device {since}", f", on the device {name} {since}")

    def next_number(self, call: Call) -> int:
        """Which call of its group this one will be, from 1; sends and receives count by peer."""
        return self._numbers.get(call.row, 0) + 1

    def complete(self) -> None:
        """Wait for all calls that have begun, and complete their outputs."""
        while self._last:
            _, pending = self._last.popitem()
            pending.complete(None)
        drop_unused(self.open)


_communicators: weakref.WeakKeyDictionary[Any, Communicator] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def find(group: Any) -> Communicator:
    """The communicator of a process group, which the dispatcher may have boxed."""
    if isinstance(group, torch._C.ScriptObject):
        group = distributed.ProcessGroup.unbox(group)
    communicator = _communicators.get(group)
    if communicator is None:
        with _lock:
            communicator = _communicators.get(group)
            if communicator is None:
                communicator = _communicators[group] = Communicator(group)
                _watch()  # from now on another group that is gone finds this one
                weakref.finalize(group, _close, communicator.transport.closing())
    return communicator


def _own() -> list[tuple[Any, Communicator]]:
    """The groups of the calling rank, where ranks are threads, or else of the process."""
    rank, found = world.this_rank(), list(_communicators.items())
    return [(group, communicator) for group, communicator in found if communicator.owner is rank]


def release() -> None:
    """Keep no works of a rank that is a thread, and which is about to leave its groups."""
    for _, communicator in _own():
        keep_alive_with_outputs(communicator.open)


def forget() -> None:
    """Forget the groups of a rank that is a thread, and which ends."""
    for group, _ in _own():
        del _communicators[group]
    _stop_watching()


def abort(backend: Any) -> None:
    """Make all later calls of the group with this backend fail."""
    for group, communicator in list(_communicators.items()):
        if backend_of(group) is backend:
            communicator.transport.abort()


_ended: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def end(group: Any, how: str) -> None:
    """Note that this rank has "aborted" or "destroyed" a group: it can make no more calls of it."""
    _ended[group] = how
    communicator = _communicators.get(group)
    if communicator is not None:
        communicator.ended = how
        if how == "aborted":
            communicator.transport.abort()


class _Synchronization(Instrument):
    """Completes outputs where the program waits for a whole device."""

    def host_synchronizes(self, awaited: Any) -> None:
        if isinstance(awaited, torch.device):
            for _, communicator in _own():
                communicator.complete()


_synchronization: Instrument | None = None


def _watch() -> None:
    global _synchronization
    if _synchronization is None:
        _synchronization = _Synchronization()
        hooks.add(_synchronization)


def _stop_watching(wait: bool = True) -> None:
    """Without groups a launch costs what it costs without torch.distributed."""
    global _synchronization
    watching = _synchronization
    # A group that is gone stays there until its own finalizer, which may call this, has ended.
    alive = any(each() is not None for each in _communicators.keyrefs())
    if watching is not None and not alive and hooks.remove(watching, wait=wait):
        _synchronization = None


def _close(close: Callable[[], None]) -> None:
    """A group is gone. That may be found out in the middle of anything, and nothing is waited for.

    Where the last watcher cannot be removed at once, the next group to end removes it.
    """
    close()
    _stop_watching(wait=False)
