"""`simgpu.asynchronous`: kernels and copies are queued, and run when something waits for them."""

from __future__ import annotations

import _thread
import copy
import importlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from simgpu._core import clock, hooks, streams
from simgpu._core.hooks import Collective, Compute, Executor, Launch, Node, value_checks
from simgpu._core.launch import other_end
from simgpu._core.lost_devices import clear_lost, lost
from simgpu._core.streams import Key, key_of
from simgpu._core.world import active_devices
from simgpu._explore.asynchronous import deferred
from simgpu._explore.asynchronous.deferred import ArgumentHolder, DeferredLaunch, ends_of
from simgpu._explore.asynchronous.memory import Memory
from simgpu._explore.asynchronous.plans import Plans, Unplanned
from simgpu._explore.asynchronous.queues import Queues

Tensor = torch.Tensor
_transform_level: Callable[[], int | None] = torch._C._functorch.maybe_current_level
_plans = Plans()  # the same for the whole process


class Asynchronous(Executor):
    """The queues of all streams, and how much was queued; made by `simgpu.asynchronous`.

    Attributes:
        deferred: how many kernels and copies were queued, to run when something waits for them.
        at_once: how many ran at once, after all that their stream had to do.
        reasons: by operator, how many of these there were and why.
    """

    def __init__(self, seed: int | None) -> None:
        self.deferred = self.at_once = 0
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.seed = seed
        # Of C, so that a schedule of threads has no part in it.
        self._lock = _thread.RLock()
        self._queues = Queues(seed)
        self._memory = Memory(self._queues)
        self._unseen: list[Exception] = []  # not reported, of lost devices that have ended since
        self._missing: list[int] = []  # devices that were lost before a copy, which others await

    @property
    def pending(self) -> int:
        """How many kernels and copies wait in the queues."""
        with self._lock:
            return self._queues.count()

    # Launches

    def run(self, launch: Launch, compute: Compute) -> Any:
        own = launch.device.index, launch.stream
        with self._lock:
            self._memory.collect()
            try:
                results = self._queue(own, launch, self._prepared(own, launch, compute))
                self._queues.run_randomly()
                return results
            except Unplanned as why:
                self.at_once += 1
                self.reasons[launch.op, str(why)] += 1
            other = other_end(launch)
            for queue in (own, other):
                if queue is not None:
                    self._queues.force(self._queues.order.until(queue))
            self._check(ends_of(launch))
        found = value_checks.get(launch.kernel.op)
        if found is not None:
            found(launch.args, launch.kwargs)
        results = compute(launch, launch.args, launch.kwargs)
        with self._lock:
            self._queues.run_randomly()
        return results

    def begins(self, launch: Launch, action: Callable[[], None]) -> None:
        with self._lock:
            self._queues.add((launch.device.index, launch.stream), action)

    def _prepared(self, own: Key, launch: Launch, compute: Compute) -> DeferredLaunch:
        """What is to be queued; raises Unplanned where the launch has to run at once."""
        kernel, args, kwargs = launch.kernel, launch.args, launch.kwargs
        if isinstance(launch.about, (Collective, Node)):
            raise Unplanned("works on more than its arguments")
        if _transform_level() is not None:  # of torch.func, which would wrap what is made here
            raise Unplanned("is within a transform")
        if own in streams.captured:
            raise Unplanned("is captured")
        copies_memory = launch.kind == "copy"
        if copies_memory and deferred.is_blocking(launch):
            raise Unplanned("blocks")
        plan, forms = _plans.of(kernel, args, kwargs)
        if copies_memory and launch.source.type == "cpu":
            args = deferred.staged_copy(launch) or args
        holder = ArgumentHolder(self._memory, plan, from_host=copies_memory)
        held = holder.hold_all(args, kwargs, forms)
        return DeferredLaunch(launch, compute, plan, held, holder.blocks, self._queues)

    def _queue(self, own: Key, launch: Launch, deferred: DeferredLaunch) -> Any:
        self.deferred += 1
        other = other_end(launch)
        if deferred.plan.allocates and launch.target.type != "cpu":
            self._memory.allocates(other or own)
        results = deferred.results(launch, self._memory)
        if not deferred.plan.idle:
            if other is None:
                number = self._queues.add(own, deferred)
            else:
                number = self._queue_between(own, other, deferred)
            self._memory.used(deferred.blocks, own, number)
        return results

    def _queue_between(self, own: Key, other: Key, moved: DeferredLaunch) -> int:
        """Queue a copy between devices: it waits for the target's stream, which waits for it."""

        def receive() -> None:
            if not moved.has_run:
                self._missing.extend(moved.ends)

        self._queues.order.wait(own, other)
        number = self._queues.add(own, moved)
        self._queues.order.wait(other, own)
        self._queues.add(other, receive)
        return number

    # Memory

    def allocated(self, device: torch.device, block: Any, storage: Any, allocation: object) -> None:
        if block.nbytes and storage is not None:
            with self._lock:
                self._memory.own((device.index, block.stream), storage, allocation)

    def used_on_stream(self, address: int, stream: torch.Stream) -> None:
        with self._lock:
            self._memory.record(address, key_of(stream))

    # Waiting

    def stream_waits(self, stream: torch.Stream | None, awaited: hooks.Awaited) -> None:
        if stream is None or isinstance(awaited, Collective):
            return  # which has run at once
        with self._lock:
            self._memory.collect()
            self._queues.order.wait(key_of(stream), awaited)

    def event_recorded(self, event: torch.Event, stream: torch.Stream) -> None:
        with self._lock:
            self._memory.collect()
            key = key_of(stream)
            timed = getattr(event, "enable_timing", False) and not clock.current.follows_devices
            if timed and self._queues.missing(self._queues.order.clock(key)) is not None:
                self._queues.add(key, partial(_pass, event))
            self._queues.order.record(event, key)

    def host_synchronizes(self, awaited: torch.device | torch.Stream | torch.Event) -> None:
        with self._lock:
            self._memory.collect()
            self._queues.force(self._queues.order.until(awaited))
            device = awaited if isinstance(awaited, torch.device) else awaited.device
            self._check(() if device is None else (device.index,))

    def is_done(self, awaited: torch.Stream | torch.Event) -> bool:
        """Whether that much has run. What asks again and again finds it done some time."""
        with self._lock:
            clock = self._queues.order.until(awaited)
            if self._queues.missing(clock) is None:
                return True
            self._queues.step(clock)
            return False

    def finish(self) -> None:
        with self._lock:
            self._memory.collect()
            self._queues.finish()

    # The block and its devices

    def restart(self, seed: int | None) -> None:
        """Finish everything, and go on in the orders of another seed."""
        self.finish()
        with self._lock:
            self.seed = seed
            self._queues.restart(seed)

    def nested(self, seed: int | None) -> Asynchronous:
        """One with counts of its own that goes on with the queues of this one, by another seed."""
        inner = copy.copy(self)
        inner.deferred = inner.at_once = 0
        inner.reasons, inner._unseen = Counter(), []
        inner.restart(seed)
        return inner

    def devices_changed(self, devices: Sequence[torch.device]) -> None:
        with self._lock:
            if devices:
                self._queues.restart(self.seed)
                return
            self.finish()
            self._queues.clear()
            self._memory.clear()
            self._unseen += lost.unreported_errors()
            clear_lost()  # what has run just now may have lost one

    def _check(self, devices: Iterable[int]) -> None:
        """Raise if one of these is lost, or a copy that was waited for never came, unseen."""
        missing = [*self._missing]
        self._missing.clear()
        unseen = lost.unreported()
        for index in (*devices, *(index for index in missing if index in unseen)):
            lost.check(index)

    def check_all(self) -> None:
        """Raise if a device was lost to an error of its kernels that was not reported."""
        for error in (*self._unseen, *lost.unreported_errors()):
            raise error

    def track_existing_allocations(self) -> None:
        """Know the memory that was allocated before."""
        with self._lock:
            self._memory.track_existing_allocations()


def _pass(event: Any) -> None:
    event._recorded_at = max(event._recorded_at, clock.current.now())


# `simgpu.asynchronous`: a block in which kernels and copies run when something waits for them.


@contextmanager
def asynchronous(seed: int | None = None) -> Iterator[Asynchronous]:
    """Make kernels and copies run when something waits for them, as the streams of a GPU allow.

    Within the block each of them is queued on its stream. It runs when the host waits for it: at
    `synchronize` of its device, its stream or a later event, at `item()`, `cpu()` and other
    blocking copies, and at operators whose output shape depends on values. Until then its new
    memory is NaN (-1 or true in other dtypes). Freed memory is overwritten in the order of the
    stream that it was allocated on. So code that forgets `wait_stream`, `record_stream` or
    `synchronize` computes wrong numbers.

    Args:
        seed: None runs work only when something waits for it. A number draws another legal order.
            Equal seeds give equal orders, if the order of the program's threads is the same.

    Yields an object with counts (`deferred`, `at_once`, `pending`). The end of the block waits for
    all work. So does the beginning of a block within it, which has its own counts. Errors of
    kernels (indices out of range) come from the call that waits, as DeviceLostError with CUDA's
    text, and the device is lost from then on. Raises ValueError for a wrong seed.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ValueError(f"seed={seed!r}: a number is expected, or None for the lazy order")
    executor = begin(seed)
    try:
        yield executor
    finally:
        end(executor)
    executor.check_all()


# Of the blocks and sessions (pytest --async) that have not ended: the last one is in force. Those
# of several threads, or of ranks that take turns, may end in any order.
_open: list[Asynchronous] = []
_lock = threading.Lock()


def begin(seed: int | None) -> Asynchronous:
    """Make all launches run when something waits for them, until `end`."""
    # PyTorch's meta kernels import it when they are first asked, which is in the middle of a
    # launch: other threads wait for an import, and a schedule of threads does not know of that.
    importlib.import_module("torch._dynamo")
    with _lock:
        if _open:
            outer = _open[-1]
            executor = outer.nested(seed)
            _exchange(outer, executor)
        else:
            executor = Asynchronous(seed)
            if any(device.allocated for device in active_devices):
                executor.track_existing_allocations()
            hooks.add(executor)
        _open.append(executor)
    return executor


def end(executor: Asynchronous) -> None:
    """Run what is left; launches run as before from now on: at once, if no other one is open."""
    with _lock:
        try:
            executor.finish()
        finally:
            was_in_force = _open[-1] is executor
            _open.remove(executor)
            if not _open:
                hooks.remove(executor)
            elif was_in_force:
                _open[-1].restart(_open[-1].seed)
                _exchange(executor, _open[-1])


def _exchange(old: Asynchronous, new: Asynchronous) -> None:
    """Make `new` go on in place of `old`, with no launch of another thread in between."""
    hooks.add(new)
    hooks.remove(old)
