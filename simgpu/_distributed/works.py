"""What the caller of a collective waits for: `Pending` for one call, `Work` for C++ and Python.

The output of an asynchronous call holds NaN until the program waits: one that reads it before sees
old values on CUDA, or half of the new ones. `wait()`, `is_completed()` that is true, the future of
the call and a synchronization of the device copy the results into the output.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.utils.weak import TensorWeakRef

from simgpu._core import streams
from simgpu._core.hooks import Collective, hooks
from simgpu._core.unwritten import fill_unwritten
from simgpu._distributed import agreement
from simgpu._distributed.collectives import Call, Tensor, in_common
from simgpu._native.python_objects import held_by_cpp
from simgpu.errors import CollectiveTimeoutError


@contextlib.contextmanager
def plain_tensors() -> Iterator[None]:
    """Within it new tensors are plain ones, in inference mode too; none of them has a gradient.

    What a call reads and writes is written by other threads, and later, and memory that ranks share
    lives as long as their group. NCCL writes memory, and knows of no such mode.
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def outside_inference_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs within `plain_tensors`."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with plain_tensors():
            return function(*args, **kwargs)

    return run


class Pending:
    """One call on its way, and where its results go.

    `previous` is the asynchronous call before it in the same stream: who waits for this one has
    waited for that one too, so that it lands first.
    """

    def __init__(self, call: Call, previous: Pending | None = None) -> None:
        self.call = call
        self.previous = previous
        self.error: BaseException | None = None
        self._landing: list[tuple[Tensor, Tensor]] = []
        self._coming: list[tuple[Pending, Tensor, Tensor]] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self.done = self._done.is_set
        self.transport: Transport | None = None
        """What carries it out, from where it is submitted until it has run."""

    def copy_inputs(self) -> None:
        """Make the call read and write copies, and fill its outputs as unwritten."""
        call = self.call
        copies = {id(tensor): tensor.clone() for tensor in call.ins}
        self._coming = [
            (earlier, copy, part)
            for earlier in reversed([*self._and_before()][1:])
            for out, result in earlier._landing
            for tensor in call.ins
            for copy, part in in_common(tensor, out, copies[id(tensor)], result)
        ]
        for tensor in call.outs:
            copies.setdefault(id(tensor), torch.empty_like(tensor))
        self._landing = [(tensor, copies[id(tensor)]) for tensor in call.outs]
        call.ins = [copies[id(tensor)] for tensor in call.ins]
        call.outs = [copies[id(tensor)] for tensor in call.outs]
        for tensor, _ in self._landing:
            fill_unwritten(tensor)

    def begin(self) -> None:
        """Read what calls before it write that were on their way when it was staged.

        Raises:
            NaNSentError: this rank gives NaN, and looks for it.
        """
        coming, self._coming = self._coming, []
        for earlier, own, part in coming:
            if earlier.error is None:
                own.copy_(part)
        if self.call.looks_for_nan:
            agreement.check_no_nan(self.call)

    def finish(self, error: BaseException | None = None) -> None:
        """Say that the call has run, or failed: then nothing lands."""
        self.error = error
        self._coming = []
        if error is not None:
            with self._lock:
                self._landing = []
        self._done.set()
        self.transport = None
        previous = self.previous
        if previous is not None:  # a send without a wait would keep all before it
            self.previous = previous.last_open()

    def is_complete(self) -> bool:
        """Whether it has run, and nothing of its own is left to land."""
        return self.done() and not self._landing

    def last_open(self) -> Pending | None:
        """The last call that is not over, of this one and those before: a barrier lands nothing."""
        return next((each for each in self._and_before() if not each.is_complete()), None)

    def has_run(self) -> bool:
        """`done`, where a program asks: other ranks may go on first."""
        transport = self.transport
        if transport is not None and not self.done():
            transport.ask(self)
        return self.done()

    def wait_and_raise(self, seconds: float | None) -> None:
        """Wait until the call has run, and raise what it raised; nothing has landed then."""
        self._wait(seconds)
        self._raise()

    def _raise(self) -> None:
        """Raise what the call has raised, if it has, and keep a copy for who waits again.

        The one that is raised gets the frames of the program, which have the outputs, and a Work
        of several outputs lives until these are gone.
        """
        if self.error is not None:
            error, self.error = self.error, copy.copy(self.error)
            try:
                raise error
            finally:
                del error  # which this frame would keep, and it the frame

    def _wait(self, seconds: float | None) -> None:
        transport = self.transport
        if transport is None:
            self.wait_idly(seconds)
        else:
            transport.wait(self, seconds)

    def wait_idly(self, seconds: float | None) -> None:
        """Wait until another thread says that the call has run."""
        if not self._done.wait(seconds):
            raise CollectiveTimeoutError(
                f"{self.call.line} has waited {seconds:g} s for other ranks"
            )

    def complete(self, seconds: float | None) -> None:
        """Wait, and write the results of it and of the calls before where the program looks.

        Those before are there also where this one has failed, whose error is raised then.
        """
        self._wait(seconds)
        for pending in reversed([*self._and_before()]):
            pending.previous = None
            if pending.done() or pending.transport is not None:  # or a thread is about to submit it
                pending._wait(seconds)
                pending._land()
        self._raise()

    def land_what_has_run(self) -> None:
        """Write the results of it, and of those calls before that have run."""
        for pending in reversed([*self._and_before()]):
            if pending.done():
                pending._land()

    def _land(self) -> None:
        with self._lock:
            landing, self._landing = self._landing, []
        for tensor, result in landing:
            tensor.copy_(result)

    def _and_before(self) -> Iterator[Pending]:
        """This call and those before it, the last one first."""
        each: Pending | None = self
        while each is not None:
            yield each
            each = each.previous


class Transport:
    """Carries out the calls of one group on this rank."""

    def submit(self, pending: Pending, awaited: bool) -> None:
        """Begin a call; it is done in the calling thread where it is `awaited`."""
        raise NotImplementedError

    def wait(self, pending: Pending, seconds: float | None) -> None:
        """Wait until a call has run; a transport may do the call here, or run other ranks."""
        pending.wait_idly(seconds)

    def ask(self, pending: Pending) -> None:
        """Called where a program asks whether a call has run, as it may in a loop."""

    def abort(self) -> None:
        """Make all later calls fail."""

    def closing(self) -> Callable[[], None]:
        """What ends it when its group is gone.

        It leads to no call: errors of calls lead to the group, which would be there for ever.
        """
        return lambda: None


class Work(distributed.Work):
    """What an asynchronous collective returns.

    C++ holds the C++ half of this object only, which would wait for ever. So `keep` has it until it
    is waited for, or dropped; where there are several outputs, it lives until all of them are gone,
    since functional collectives wait for each.
    """

    def __init__(self, pending: Sequence[Pending], outputs: list[Tensor], keep: set[Any]) -> None:
        super().__init__()
        self._pending = pending
        self._outputs = outputs
        self._seen: list[TensorWeakRef] = []
        self._keep = keep
        drop_unused(keep)
        keep.add(self)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until all of it has run; then the outputs are there."""
        self._land(timeout.total_seconds())
        awaited(self._collectives())
        return True

    def _collectives(self) -> list[Collective]:
        calls = [pending.call.collective for pending in self._pending]
        return [each for each in calls if each is not None]

    def live_as_outputs(self) -> None:
        """Live until all outputs are gone, and keep none of them."""
        outputs, self._outputs = self._outputs, []
        self._seen += [TensorWeakRef(output) for output in outputs]
        for output in outputs:
            weakref.finalize(output, _gone, self).atexit = False

    def _land(self, seconds: float = 0.0) -> None:
        # Those of the calls of a coalesced one, too: there is no wait for each of them.
        waited = set(self._pending)
        self._keep -= {work for work in list(self._keep) if waited.issuperset(work._pending)}
        if len(self._outputs) > 1:
            self.live_as_outputs()
        for pending in self._pending:
            pending.complete(seconds if seconds > 0 else None)
        drop_unused(self._keep)

    def is_complete(self) -> bool:
        """Whether all of it has landed."""
        return all(pending.is_complete() for pending in self._pending)

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Any:
        """A completed future of the outputs.

        DistributedDataParallel's Reducer wants a list of tensors of C++, which no future has that
        Python completes later. So this waits; no stream does, as none would by asking for it.
        """
        outputs = self.result()
        self._land()
        finished(self._collectives())
        return _future(outputs)

    def is_completed(self) -> bool:
        """Whether all of it has run: then the outputs are there, as after an event that is over."""
        if not all(pending.has_run() for pending in self._pending):
            return False
        for pending in self._pending:
            pending.land_what_has_run()
        if self.exception() is None:
            finished(self._collectives())
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        return next((pending.error for pending in self._pending if pending.error), None)

    def result(self) -> list[Tensor]:
        return self._outputs or [output for seen in self._seen if (output := seen()) is not None]


def _references(keep: set[Any]) -> list[tuple[Any, int]]:
    """What is in a set, and how many references each has while it is looked at."""
    return [(each, sys.getrefcount(each)) for each in list(keep)]


# As many as an object has that only a set refers to; it depends on how Python runs the above.
_IN_A_SET = _references({object()})[0][1]


def drop_unused(keep: set[Work]) -> None:
    """Keep no longer what has landed, and what neither the program nor C++ can wait for any more.

    By that they would keep memory of the device.
    """
    for work, references in _references(keep):
        if work.is_complete() and references <= _IN_A_SET and not held_by_cpp(work):
            keep.discard(work)


def keep_alive_with_outputs(keep: set[Work]) -> None:
    """Drop the Works of a group that ends: each of them refers to all by this set.

    A Work that C++ can still wait for lives as long as its outputs.
    """
    for work in list(keep):
        if held_by_cpp(work):
            work.live_as_outputs()
    keep.clear()


def _gone(work: Work) -> None:
    """An output of it is gone: until now, its finalizer has kept the Work."""


def awaited(collectives: Sequence[Collective]) -> None:
    """Report to instruments that the current streams of their devices wait for these."""
    for waits in hooks.stream_waits:
        for about in collectives:
            waits(streams.current_stream(about.index), about)


def finished(collectives: Sequence[Collective]) -> None:
    """Report to instruments that the host has waited for these, and no stream has."""
    for waits in hooks.stream_waits:
        for about in collectives:
            waits(None, about)


def completed(outputs: list[Tensor]) -> Any:
    """A Work of C++ that is done."""
    make: Any = vars(torch._C._distributed_c10d)["_create_work_from_future"]
    return make(_future(outputs))


def _future(tensors: list[Tensor]) -> Any:
    tensors = tensors or [torch.empty(0, device="cpu")]  # C++ needs an element
    return torch._C.fork(lambda: tensors)
