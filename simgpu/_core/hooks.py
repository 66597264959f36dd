"""Callbacks on kernels, copies, memory and streams; executors that run kernels later.

Derive from `Instrument`, override the methods that matter, and `add` an object of that class:
traces, timelines, the check for forked processes are made so. A method that no instrument overrides
costs nothing where it would be called: `hooks` holds, for each method, the overriding ones only.

Methods are called in the thread that does the thing, in the order in which instruments were added.
Only those whose description says so may raise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch


@dataclass(unsafe_hash=True)  # not frozen, which makes one cost five times as much
class Collective:
    """The call of a process group that a launch makes: a collective, a send or a receive.

    `number` counts the calls of the group, from 1, and by peer and tag those that send and receive.
    `ranks` are the global ranks of its members, `place` is the line of the program. `rank` is who
    calls, `peer` with whom where it `sends` to one rank or receives from one, both global, and
    `tag` which receives a send is for, where the backend looks at it. `nbytes` are those of this
    rank: what it reads or what it writes, whichever is more. `index` is the device of its tensors.
    """

    group: str
    number: int
    ranks: tuple[int, ...]
    place: str
    rank: int = 0
    peer: int | None = None
    tag: int = 0
    sends: bool = False
    nbytes: int = 0
    index: int = 0


@dataclass(frozen=True, eq=False)
class Node:
    """The place of a kernel or copy in a graph that was captured (torch.cuda.CUDAGraph).

    `graph` is an object that all its nodes share. `number` counts them from 0, `branch` the streams
    of the capture, of which 0 is the one that is replayed on; `after` are the nodes that have to
    have ended before: the last one of each branch that its stream had waited for. `writes` are the
    graph's own tensors for new results, which are written to besides what the schema says.
    """

    graph: object
    number: int
    branch: int
    after: tuple[int, ...]
    writes: Sequence[torch.Tensor]


# What a stream waits for.
Awaited = torch.Stream | torch.Event | Collective

# Some tensors that a launch writes to are copies of the program's.
ON_COPIES: Literal["on copies"] = "on copies"
# What instruments see of a launch besides its kernel.
About = Collective | Node | Literal["on copies"] | None


@dataclass(slots=True)  # not frozen: as above
class Launch:
    """One kernel or copy that is about to run, or fresh memory that is about to be made.

    `kind` is "memory" where CUDA launches no kernel: `torch.empty` and similar functions make
    memory that is not filled. Instruments see them like kernels, and they count as none. What only
    changes which memory a tensor refers to is no launch: `set_`, and views of dense tensors, which
    are PyTorch's own.

    `device` and `stream` are where it is queued. `source` and `target` differ only for copies
    between devices, or between a device and the host. `args` and `kwargs` are those of `op`, with
    host aliases in place of the device's tensors. `kernel` has the operator itself, and the host
    code that computes it (`simgpu._core.launch.Kernel`). `about` is the call of a process group,
    the node of a replayed graph, or ON_COPIES where some of the arguments are copies.
    """

    kind: str  # "kernel", "copy" or "memory"
    op: str
    device: torch.device
    stream: int
    source: torch.device
    target: torch.device
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    kernel: Any
    about: About = None


@dataclass(frozen=True)
class Record:
    """One kernel or copy that ran, or fresh memory; `kind` is that of its `Launch`.

    `nbytes` are the bytes of the tensors that were written: a kernel's outputs, or what a copy
    moved. They are 0 for the copy of `tensor.item()`, which returns a number. `source` and `target`
    differ only for copies between devices, or between a device and the host. `begin` and `end` are
    seconds of the clock in force (`simgpu._core.clock`); `allocated` are the bytes of `device`
    that were taken at the end, before the results were added. `collective` says which call of which
    process group it was; None for all that is not of torch.distributed.
    """

    kind: str
    op: str
    device: torch.device
    stream: int
    source: torch.device
    target: torch.device
    nbytes: int
    shapes: tuple[tuple[int, ...], ...]
    thread: str
    begin: float
    end: float
    allocated: int
    collective: Collective | None = None


class Instrument:
    """Callbacks on what the devices of a process do; the methods do nothing unless overridden."""

    def before_launch(self, launch: Launch) -> None:
        """A kernel or copy is about to run. May wait; may raise, and then it does not run."""

    def computed(self, launch: Launch, result: Any) -> None:
        """A kernel or copy has computed `result`: host tensors whose memory is no device's yet.

        Their values may be changed.
        """

    def launched(self, launch: Launch, result: Any) -> None:
        """A kernel or copy has been asked for without an error: its results, as host tensors.

        Their memory is no device's yet, and their values may come later, by an executor. After a
        launch ON_COPIES this is called once more, with `result` None, when the tensors themselves
        have what was computed: by the same launch with aliases of these. It is no second kernel.
        """

    def after_launch(self, launch: Launch, record: Record) -> None:
        """A kernel or copy has run without an error."""

    def before_allocate(self, device: torch.device, nbytes: int) -> None:
        """`nbytes` are about to be taken. May raise, and then they are not."""

    def allocated(
        self,
        device: torch.device,
        block: Any,
        storage: torch.UntypedStorage | None,
        allocation: object,
    ) -> None:
        """`block`, a `simgpu._core.device.Block`, has been taken on `device`.

        `storage`, of the host, is this memory for as long as `allocation` lives; None where none is
        known. To keep the storage keeps the memory, while the ledger still counts by the
        allocation.
        """

    def freed(self, device: torch.device, block: Any) -> None:
        """`block`, which `allocated` had, has been freed.

        Called when the ledger is next read or written, not at the free.
        """

    def stream_waits(self, stream: torch.Stream | None, awaited: Awaited) -> None:
        """Later work of `stream` waits for the present work of another, or for an event.

        Or for a collective, by `Work.wait` or because it blocks; `stream` is None where the host
        has waited until that is over, since it asked for its future. May raise, and then nothing
        waits.
        """

    def event_recorded(self, event: torch.Event, stream: torch.Stream) -> None:
        """`event` marks the present work of `stream`."""

    def used_on_stream(self, address: int, stream: torch.Stream) -> None:
        """The memory at `address` waits for `stream` before it is used again.

        By `tensor.record_stream(stream)`, or by autograd's engine for a gradient.
        """

    def host_synchronizes(self, awaited: torch.device | torch.Stream | torch.Event) -> None:
        """The thread waits for all work of a device or stream, or for an event. May raise."""

    def devices_changed(self, devices: Sequence[torch.device]) -> None:
        """There are these simulated devices from now on, or none any more."""


class WhileDevicesExist(Instrument):
    """Calls `begin` when there are devices, and what it has returned when there are none left."""

    def __init__(self, begin: Callable[[], Callable[[], object]]) -> None:
        self._begin = begin
        self._end: Callable[[], object] | None = None

    def devices_changed(self, devices: Sequence[torch.device]) -> None:
        if devices and self._end is None:
            self._end = self._begin()
        elif not devices and self._end is not None:
            self._end()
            self._end = None


_NAMES = tuple(name for name in vars(Instrument) if not name.startswith("_"))


class Hooks:
    """For each method of `Instrument`, the methods that override it; empty where none does."""

    __slots__ = ("executor", "launches", *_NAMES)

    before_launch: tuple[Callable[[Launch], None], ...]
    computed: tuple[Callable[[Launch, Any], None], ...]
    launched: tuple[Callable[[Launch, Any], None], ...]
    after_launch: tuple[Callable[[Launch, Record], None], ...]
    before_allocate: tuple[Callable[[torch.device, int], None], ...]
    allocated: tuple[Callable[[torch.device, Any, Any, object], None], ...]
    freed: tuple[Callable[[torch.device, Any], None], ...]
    stream_waits: tuple[Callable[[torch.Stream | None, Awaited], None], ...]
    event_recorded: tuple[Callable[[torch.Event, torch.Stream], None], ...]
    used_on_stream: tuple[Callable[[int, torch.Stream], None], ...]
    host_synchronizes: tuple[Callable[[torch.device | torch.Stream | torch.Event], None], ...]
    devices_changed: tuple[Callable[[Sequence[torch.device]], None], ...]
    executor: Executor | None  # runs what is launched; None: it runs at once
    launches: bool  # whether anyone sees launches: the one question on the path of a lone kernel

    def __init__(self) -> None:
        self.rebuild(())

    def rebuild(self, instruments: Sequence[Instrument]) -> None:
        """Hold the overriding methods of these instruments, and no others."""
        for name in _NAMES:
            stock = getattr(Instrument, name)
            overriding = [i for i in instruments if getattr(type(i), name) is not stock]
            setattr(self, name, tuple(getattr(instrument, name) for instrument in overriding))
        self.executor = next((i for i in reversed(instruments) if isinstance(i, Executor)), None)
        watched = self.before_launch or self.computed or self.launched or self.after_launch
        self.launches = bool(watched or self.executor)


hooks = Hooks()
_instruments: tuple[Instrument, ...] = ()
added: list[Callable[[], object]] = []  # called when there is one more
_lock = threading.Lock()


def add(instrument: Instrument) -> None:
    """Call the methods of `instrument` in all threads from now on."""
    global _instruments
    with _lock:
        _instruments = (*_instruments, instrument)
        hooks.rebuild(_instruments)
    for notify in added:
        notify()


def remove(instrument: Instrument, *, wait: bool = True) -> bool:
    """Take `instrument` away again; nothing where it is not there.

    Without `wait`, as a finalizer has to call it, it is left and the answer is False where someone
    is adding or removing one: that may be the very thread in which the finalizer runs.
    """
    global _instruments
    lock = _lock
    if not lock.acquire(wait):
        return False
    try:
        _instruments = tuple(other for other in _instruments if other is not instrument)
        hooks.rebuild(_instruments)
    finally:
        lock.release()
    return True


def renew_lock() -> None:
    """In a forked child, which has one thread: a lock that another thread held stays held."""
    global _lock
    _lock = threading.Lock()


# `Executor`: runs what is launched, if not `launch` itself at once.
#
# An executor is an instrument: it is in force from `hooks.add` to `hooks.remove`, and costs nothing
# while there is none. Of several, only the last one runs the work.

# Runs the kernel of a launch on these arguments, and shows instruments what it has computed.
Compute = Callable[[Launch, Sequence[Any], Mapping[str, Any]], Any]


class Executor(Instrument):
    """Runs kernels and copies, now or later; derive from it."""

    def run(self, launch: Launch, compute: Compute) -> Any:
        """The results of `launch`: host tensors whose values may come later, by `compute`."""
        raise NotImplementedError

    def begins(self, launch: Launch, action: Callable[[], None]) -> None:
        """Call `action` when this launch, which is about to be run or queued, comes to its turn."""
        raise NotImplementedError

    def is_done(self, awaited: torch.Stream | torch.Event) -> bool:
        """Whether all work of a stream has run, or all before an event. Never waits."""
        raise NotImplementedError

    def finish(self) -> None:
        """Run all that is to run: memory of a device is about to be used outside of `launch`."""
        raise NotImplementedError


# Takes the arguments of a call, and raises where their values are wrong.
ValueCheck = Callable[[Sequence[Any], Mapping[str, Any]], None]
# By operator, what an executor has to check before it computes.
value_checks: dict[torch._ops.OpOverload, ValueCheck] = {}
# Names of operators of aten whose meta kernels answer for another device's kernel: other shapes,
# other strides, or results that are not conjugated lazily.
wrong_on_meta: set[str] = set()


def finish_queued_work() -> None:
    """Finish all work, before memory of devices is used otherwise than by `launch`."""
    if hooks.executor is not None:
        hooks.executor.finish()


def is_done(awaited: torch.Stream | torch.Event) -> bool:
    """Whether the work of a stream, or before an event, has run: always, without an executor."""
    return hooks.executor is None or hooks.executor.is_done(awaited)
