"""The queue of each stream, and the orders in which queued work may run.

Work of one stream runs in the order in which it was queued, and after what its stream waited for.
Any order that keeps to this is legal. The lazy one runs nothing until something waits for it, and
then only what that needs. A seed draws orders instead: how often work runs before something waits
for it, and which streams go first. A kernel runs with the settings of the thread that launched it
(`LaunchState`).
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch

from simgpu._core.order import Clock, Order
from simgpu._core.streams import Key

# What a kernel depends on besides its arguments, kept from its launch to when it runs.
#
# Another thread may run it, and settings may have changed by then: which dispatch keys are active
# (autocast and autograd of the caller, and no modes, which may have ended by then), how many
# threads a kernel of the host may use, on which the last bits of a sum depend, and the global
# settings that kernels read.

_Guard: Any = torch._C._ForceDispatchKeyGuard
_InferenceMode: Any = torch._C._InferenceMode
_included: Any = torch._C._dispatch_tls_local_include_set
_excluded: Any = torch._C._dispatch_tls_local_exclude_set
# What PyTorch's functions ask, of C.
_threads: Callable[[], int] = torch.get_num_threads
_deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
_warn_only: Callable[[], bool] = torch._C._get_deterministic_algorithms_warn_only
_dtype: Callable[[], torch.dtype] = torch._C.get_default_dtype
_inference: Callable[[], bool] = torch._C.is_inference_mode_enabled
# What says that the thread has modes of operators: without one, C++ refuses what it is asked for.
_MODES = torch._C.DispatchKeySet(torch._C.DispatchKey.Python) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.PythonTLSSnapshot
)
_Settings = tuple[int, bool, bool, torch.dtype, bool]


def _settings() -> _Settings:
    return _threads(), _deterministic(), _warn_only(), _dtype(), _inference()


class LaunchState:
    """The state of a thread that launches something; equal states are one object."""

    __slots__ = ("_excluded", "_included", "_settings")

    def __init__(self, included: Any, excluded: Any, settings: _Settings) -> None:
        self._included, self._excluded, self._settings = included, excluded, settings

    def call(self, function: Callable[[], None]) -> None:
        """Call `function` in this state, whichever thread does.

        The blocks are made of C: where Ctrl-C comes in between, they end in their order. One that
        ends later, with a generator, would leave the thread the keys of a kernel.
        """
        before = _settings()
        if before == self._settings:
            with _Guard(self._included, self._excluded):
                function()
            return
        with _InferenceMode(self._settings[-1]), _Guard(self._included, self._excluded):
            try:
                _set(self._settings)
                function()
            finally:
                _set(before)


def current_state() -> LaunchState:
    """The state of the calling thread."""
    return _state_of(_included().raw_repr(), _excluded().raw_repr(), _settings())


@functools.cache
def _state_of(included: int, excluded: int, settings: _Settings) -> LaunchState:
    """The state with these dispatch keys, as PyTorch numbers sets of them."""
    from_number = torch._C.DispatchKeySet.from_raw_repr
    return LaunchState(from_number(included) - _MODES, from_number(excluded), settings)


def _set(settings: _Settings) -> None:
    threads, deterministic, warn_only, dtype, _ = settings
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    torch._C._set_deterministic_algorithms(deterministic, warn_only=warn_only)
    if torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)


# CUDA's own queue is about as long: a launch waits while it is full.
LONGEST = 1024
# How likely it is that more work runs after a launch: a seed draws one. Where nothing runs before
# something waits, or little, streams are far apart from each other.
_EAGERNESS = (0.0, 0.1, 0.5)


class Work(NamedTuple):
    """One thing to do on a stream. `after` is what has to be done before, besides the stream's."""

    key: Key
    number: int  # counts what its stream was asked for, from 1
    after: Clock
    run: Callable[[], None]
    early: bool


_NOTHING: Clock = {}


class Queues:
    """The queues of all streams of all devices; not safe to be used by two threads at a time.

    Work is named by its number on its stream, and sets of work by a clock, as `order` has them.
    """

    def __init__(self, seed: int | None) -> None:
        self.order = Order()
        self._queues: dict[Key, deque[Work]] = {}
        self._done: Clock = {}  # of each stream, how much of its work has run
        self._early = 0  # how much of what is queued runs as soon as it can
        self.restart(seed)

    def restart(self, seed: int | None) -> None:
        """Begin the orders of `seed`; None means the lazy one."""
        self._random = None if seed is None else random.Random(seed)
        self._eagerness, self._is_hasty = 0.0, True  # with what is early
        if self._random is not None:
            self._eagerness = self._random.choice(_EAGERNESS)
            self._is_hasty = self._random.random() < 0.5

    def count(self) -> int:
        """How much work has not run."""
        return sum(map(len, self._queues.values()))

    def is_done(self, key: Key, number: int) -> bool:
        """Whether some work of a stream has run."""
        return self._done.get(key, 0) >= number

    def missing(self, clock: Clock) -> tuple[Key, int] | None:
        """Some work of `clock` that has not run; None where all of it has."""
        return next((work for work in clock.items() if not self.is_done(*work)), None)

    def add(self, key: Key, run: Callable[[], None], early: bool = False) -> int:
        """Queue work on a stream, after all that the stream has waited for; its number.

        What is `early` runs as soon as it can in the lazy order, and in some that are drawn.
        """
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
        clock, number = self.order.begin(key)
        after = _NOTHING
        if len(clock) > 1:
            after = {k: n for k, n in clock.items() if k != key and not self.is_done(k, n)}
        queue.append(Work(key, number, after, run, early))
        if early:
            self._early += 1
            self._run_early()
        elif len(queue) > LONGEST:
            self.force({key: queue[0].number})
        return number

    def finish(self) -> None:
        """Run all work of all streams."""
        self.force({key: queue[-1].number for key, queue in self._queues.items() if queue})

    def force(self, clock: Clock) -> None:
        """Run some work, and what has to run before it; no more than that."""
        if self._random is not None:
            self._force_drawn(self._random, clock)
            return
        stack = list(reversed(clock.items()))
        while (first := self._next(stack)) is not None:
            state = getattr(first.run, "state", None)
            if state is None:
                self._run(first)
            else:
                state.call(partial(self._run_alike, stack, first, state))

    def _next(self, stack: list[tuple[Key, int]]) -> Work | None:
        """What can run now for the last of what is wanted; None if all of that has run."""
        while stack:
            if self.is_done(*stack[-1]):
                stack.pop()
                continue
            first = self._queues[stack[-1][0]][0]
            missing = self.missing(first.after)
            if missing is None:
                return first
            stack.append(missing)
        return None

    def _run_alike(
        self, stack: list[tuple[Key, int]], first: Work | None, state: LaunchState
    ) -> None:
        """Run what comes next as long as it was launched in one state, which is in force."""
        while first is not None and getattr(first.run, "state", None) is state:
            self._take(first)
            first.run.in_state()  # type: ignore[attr-defined]
            if self._early:
                self._run_early()
            first = self._next(stack)

    def _force_drawn(self, drawing: random.Random, clock: Clock) -> None:
        """Run some work, and what has to run before it, the streams in turns that are drawn."""
        wanted: Clock = {}
        todo = [clock]
        while todo:
            for key, number in todo.pop().items():
                done = self._done.get(key, 0)
                known = max(wanted.get(key, 0), done)
                if number > known:
                    wanted[key] = number
                    more = islice(self._queues[key], known - done, number - done)
                    todo += [work.after for work in more]
        while ready := [work for work in self._ready() if work.number <= wanted.get(work.key, 0)]:
            self._run(drawing.choice(ready))

    def run_randomly(self) -> None:
        """Run a random number of kernels and copies that wait for nothing, drawn from the seed."""
        while self._random is not None and self._random.random() < self._eagerness:
            ready = self._ready()
            if not ready:
                return
            self._run(self._random.choice(ready))

    def step(self, clock: Clock) -> None:
        """Run one thing that `clock` waits for: it is asked for again and again."""
        missing = self.missing(clock)
        while missing is not None:
            first = self._queues[missing[0]][0]
            missing = self.missing(first.after)
            if missing is None:
                self._run(first)

    def _ready(self) -> list[Work]:
        """The first work of each stream that waits for none."""
        first = (queue[0] for queue in self._queues.values() if queue)
        return [work for work in first if self.missing(work.after) is None]

    def _run(self, work: Work) -> None:
        self._take(work)
        work.run()
        if self._early and not work.early:
            self._run_early()

    def _take(self, work: Work) -> None:
        """Take work from its queue: it counts as done."""
        self._queues[work.key].popleft()
        self._done[work.key] = work.number
        self._early -= work.early

    def _run_early(self) -> None:
        """Run what is early, if nothing is before it."""
        while self._is_hasty and self._early:
            ready = [work for work in self._ready() if work.early]
            if not ready:
                return
            for work in ready:
                self._run(work)

    def clear(self) -> None:
        """Forget all work without running it, and every order."""
        self.order = Order()
        self._queues.clear()
        self._done.clear()
        self._early = 0

    def drop(self, index: int) -> None:
        """Forget the work of a device that is lost: it counts as done."""
        for (device, _), queue in self._queues.items():
            while device == index and queue:
                self._take(queue[0])
