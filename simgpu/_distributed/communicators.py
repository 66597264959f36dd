"""`Communicator`: what this rank knows of one process group: its members, its calls, its transport.

It lives as long as the group's Python object, which torch.distributed keeps until
`destroy_process_group`.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import distributed
from torch.distributed import distributed_c10d as c10d

from simgpu._distributed import fake, gloo, nan_check, splitting
from simgpu._distributed.backends import backend_of, kind_of
from simgpu._distributed.calls import Call
from simgpu._distributed.works import Pending, Work, drop_unused, leave_to_outputs
from simgpu._naming import DEVICE_TYPE, visible_text
from simgpu._runtime import instruments
from simgpu._runtime.instruments import Instrument
from simgpu.errors import RankLostError, UnsupportedError


class Transport(Protocol):
    """Carries out the calls of one group on this rank."""

    def submit(self, pending: Pending, awaited: bool) -> None: ...
    def algorithm(self, call: Call) -> str: ...
    def abort(self) -> None: ...
    def closing(self) -> Callable[[], None]:
        """What ends it when its group is gone.

        It leads to no call: errors of calls lead to the group, which would be there for ever.
        """
        ...


class _Threads(threading.local):
    """Of a thread that is a rank: which one, and what carries out the calls of its groups."""

    rank: int | None = None
    carrier: Callable[[str, int, list[int]], Transport] | None = None


threads = _Threads()


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
        """The only device for its tensors, as `device_id` of init_process_group said."""
        self.used_devices: dict[int, None] = {}
        """Those that its tensors were on, in this order."""
        self.transport = self._carried_by(group, backend)
        self.owner = threads.carrier
        """Whose it is, where ranks are threads of one process."""
        self.ended = _ended.get(group, "")
        """What this rank has done to the group, if it can make no calls any more."""
        self._backend = backend
        self._looks_for_nan = self.kind == "nccl" and nan_check.is_asked_for()
        self.open: set[Work] = set()
        self.coalesced: list[Pending] | None = None
        """The calls since `_start_coalescing`; None outside."""
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._since: dict[str, int] = {}
        self._last: dict[str, Pending] = {}

    def _carried_by(self, group: Any, backend: Any) -> Transport:
        if threads.carrier is not None:
            return threads.carrier(splitting.agreed_name(group), self.rank, self.ranks)
        if isinstance(backend, distributed.ProcessGroupGloo):
            _, store = c10d._world.pg_map.get(group, (None, None))
            return gloo.Transport(backend, self.name, self.ranks, store)
        if isinstance(backend, torch._C._distributed_c10d.FakeProcessGroup):
            return fake.Transport(backend)
        raise UnsupportedError(
            f"collectives of simulated devices go through gloo, and group {self.name!r} has "
            f"{type(backend).__name__} for them: take nccl or gloo"
        )

    def submit(self, call: Call, asynchronous: bool) -> Pending:
        """Begin a call; unless it is asynchronous, it has run when this returns."""
        if self.ended:
            raise RankLostError(
                f"{call.shown} at {call.place}: group {self.name!r} was {self.ended} by this rank"
            )
        call.looks_for_nan = getattr(self._backend, "looks_for_nan", self._looks_for_nan)
        row = call.row
        with self._lock:
            call.number = self._numbers[row] = self._numbers.get(row, 0) + 1
            if not row:
                self._tell_device(call)
            previous = self._last.get(row) if asynchronous else None
            pending = Pending(call, None if previous is None else previous.last_open())
            if asynchronous:
                if not isinstance(self.transport, fake.Transport):  # which waits for nobody
                    pending.stage()
                self._last[row] = pending
            else:
                call.read_apart()
            if self.coalesced is not None:
                self.coalesced.append(pending)
        self.transport.submit(pending, awaited=not asynchronous)
        if not asynchronous:
            pending.await_(None)
        return pending

    def _tell_device(self, call: Call) -> None:
        """Let all ranks have changed to other devices at the same call, or none of them."""
        call.since = self._since.setdefault(call.device, call.number)
        if call.since > 1:
            name = "" if call.collective is None else f" {_name_of(call.collective.index)}"
            call.add(
                f", on a device first used in call {call.since}",
                f", on the device{name} first used in call {call.since}",
            )

    def next_number(self, call: Call) -> int:
        """Which call of its group this one will be, from 1; sends and receives count by peer."""
        return self._numbers.get(call.row, 0) + 1

    def land(self) -> None:
        """Wait for all that has begun, and let the outputs be there."""
        while self._last:
            _, pending = self._last.popitem()
            pending.land(None)
        drop_unused(self.open)


def _name_of(index: int) -> str:
    """A device by the name that the program knows."""
    return visible_text(f"{DEVICE_TYPE}:{index}")


_communicators: weakref.WeakKeyDictionary[Any, Communicator] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def find(group: Any) -> Communicator:
    """The communicator of a process group, which the dispatcher may have boxed."""
    if isinstance(group, torch._C.ScriptObject):
        group = distributed.ProcessGroup.unbox(group)
    communicator = _communicators.get(group)
    return communicator or _make(group)


def _make(group: Any) -> Communicator:
    with _lock:
        communicator = _communicators.get(group)
        if communicator is None:
            communicator = _communicators[group] = Communicator(group)
            _watch()  # from now on another group that is gone finds this one
            weakref.finalize(group, _close, communicator.transport.closing())
        return communicator


def let_go() -> None:
    """Keep no works of a rank that is a thread, and which is about to leave its groups."""
    for communicator in list(_communicators.values()):
        if communicator.owner is threads.carrier:
            leave_to_outputs(communicator.open)


def forget() -> None:
    """Forget the groups of a rank that is a thread, and which ends."""
    for group, communicator in list(_communicators.items()):
        if communicator.owner is threads.carrier:
            del _communicators[group]
    _stop_watching()


def abort(backend: Any) -> None:
    """Let all later calls of the group with this backend fail."""
    for group, communicator in list(_communicators.items()):
        if backend_of(group) is backend:
            communicator.transport.abort()


_ended: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def ending(how: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A method of ProcessGroup after which this rank can make no calls of the group."""

    def wrap(stock: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(stock)
        def end(self: Any) -> Any:
            _ended[self] = how
            communicator = _communicators.get(self)
            if communicator is not None:
                communicator.ended = how
                if how == "aborted":
                    communicator.transport.abort()
            return stock(self)

        return end

    return wrap


class _Synchronization(Instrument):
    """Lets outputs land where the program waits for a whole device."""

    def host_synchronizes(self, awaited: Any) -> None:
        if isinstance(awaited, torch.device):
            for communicator in list(_communicators.values()):
                if communicator.owner is threads.carrier:
                    communicator.land()


_synchronization: Instrument | None = None


def _watch() -> None:
    global _synchronization
    if _synchronization is None:
        _synchronization = _Synchronization()
        instruments.add(_synchronization)


def _stop_watching(wait: bool = True) -> None:
    """Without groups a launch costs what it costs without torch.distributed."""
    global _synchronization
    watching = _synchronization
    # A group that is gone stands there until its own finalizer, which may call this, has ended.
    alive = any(each() is not None for each in _communicators.keyrefs())
    if watching is not None and not alive and instruments.remove(watching, wait=wait):
        _synchronization = None


def _close(close: Callable[[], None]) -> None:
    """A group is gone. That may be found out in the middle of anything, and nothing is waited for.

    Where it cannot be said at once that nobody watches any more, the next group to end says so.
    """
    close()
    _stop_watching(wait=False)
