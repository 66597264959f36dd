"""The queues of all streams: what has to run before what, and in which state of the thread.

Work of one stream runs in the order in which it was queued, and after what its stream waited for.
Any order that keeps to this is legal. The laziest one runs nothing until somebody waits for it, and
then only what that needs. A seed draws orders instead: how often work runs before somebody waits
for it, and which streams go first.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import torch

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
    """The state of a thread that launches something; equal states are one object (`current`)."""

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
# somebody waits, or little, streams are far apart from each other.
_EAGERNESS = (0.0, 0.1, 0.5)


class Work:
    """One thing to do on a stream. `needs` is what has to be done before, besides the stream's."""

    __slots__ = ("done", "early", "key", "needs", "run")

    def __init__(
        self, key: Key, run: Callable[[], None] | None, needs: Sequence[Work], early: bool
    ) -> None:
        self.key, self.run, self.needs, self.early = key, run, needs, early
        self.done = False

    def missing(self) -> Work | None:
        """One that has to be done before, and is not."""
        return next((need for need in self.needs if not need.done), None)


class Queues:
    """The queues of all streams of all devices; not safe to be used by two threads at a time."""

    def __init__(self, seed: int | None) -> None:
        self._queues: dict[Key, deque[Work]] = {}
        self._early = 0  # how much of what is queued runs as soon as it can
        self.restart(seed)

    def restart(self, seed: int | None) -> None:
        """Begin the orders of `seed`; None means the laziest one."""
        self._random = None if seed is None else random.Random(seed)
        self._eagerness, self._is_hasty = 0.0, True  # with what is early
        if self._random is not None:
            self._eagerness = self._random.choice(_EAGERNESS)
            self._is_hasty = self._random.random() < 0.5

    def last(self, key: Key) -> Work | None:
        """The last work of a stream that has not run."""
        queue = self._queues.get(key)
        return queue[-1] if queue else None

    def count(self) -> int:
        """How much work has not run."""
        return sum(map(len, self._queues.values()))

    def streams(self, index: int | None = None) -> list[Key]:
        """The streams with work that has not run, of one device or of all."""
        found = [key for key, queue in self._queues.items() if queue]
        return [key for key in found if index is None or key[0] == index]

    def add(
        self,
        key: Key,
        run: Callable[[], None] | None,
        needs: Iterable[Work | None] = (),
        early: bool = False,
    ) -> Work:
        """Queue work on a stream.

        What is `early` runs as soon as it can in the laziest order, and in some that are drawn.
        """
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
        awaited = [need for need in needs if need is not None and not need.done] if needs else ()
        work = Work(key, run, awaited, early)
        queue.append(work)
        if early:
            self._early += 1
            self._run_early()
        elif len(queue) > LONGEST:
            self.force(queue[0])
        return work

    def wait(self, key: Key, needed: Work | None) -> None:
        """Make later work of a stream wait for `needed`."""
        if needed is not None and not needed.done and needed.key != key:
            self.add(key, None, (needed,))

    def force(self, work: Work | None) -> None:
        """Run some work, and what has to run before it; no more than that."""
        if work is None or work.done:
            return
        if self._random is not None:
            self._force_drawn(self._random, (work,))
            return
        stack = [work]
        while (first := self._next(stack)) is not None:
            state = getattr(first.run, "state", None)
            if state is None:
                self._run(first)
            else:
                state.call(partial(self._run_alike, stack, first, state))

    def _next(self, stack: list[Work]) -> Work | None:
        """What can run now for the last of what is wanted; None if all of that has run."""
        while stack:
            last = stack[-1]
            if last.done:
                stack.pop()
                continue
            first = self._queues[last.key][0]
            missing = first.missing() if first.needs else None
            if missing is None:
                return first
            stack.append(missing)
        return None

    def _run_alike(self, stack: list[Work], first: Work | None, state: LaunchState) -> None:
        """Run what comes next as long as it was launched in one state, which is in force."""
        while first is not None and getattr(first.run, "state", None) is state:
            self._taken(first).in_state()
            if self._early:
                self._run_early()
            first = self._next(stack)

    def finish(self, keys: Iterable[Key]) -> None:
        """Run all work of these streams."""
        wanted = [last for last in map(self.last, keys) if last is not None]
        if self._random is not None:
            self._force_drawn(self._random, wanted)
            return
        for work in wanted:
            self.force(work)

    def _force_drawn(self, drawing: random.Random, wanted: Iterable[Work]) -> None:
        """Run some work, and what has to run before it, the streams in turns that are drawn."""
        streams = self._needed(wanted)
        while streams:
            ready = [key for key, queue in streams.items() if queue[0].missing() is None]
            key = drawing.choice(ready)
            queue = streams[key]
            self._run(queue.popleft())
            # What is lost with its device is done, too.
            for key, queue in list(streams.items()):
                while queue and queue[0].done:
                    queue.popleft()
                if not queue:
                    del streams[key]

    def _needed(self, wanted: Iterable[Work]) -> dict[Key, deque[Work]]:
        """By stream, what has to run until some work is done, and has not."""
        found: dict[Key, deque[Work]] = {}
        seen: set[Work] = set()
        todo = [work for work in wanted if not work.done]
        while todo:
            work = todo.pop()
            if work in seen:
                continue
            queue = found.setdefault(work.key, deque())
            for each in islice(self._queues[work.key], len(queue), None):
                queue.append(each)
                seen.add(each)
                todo += [need for need in each.needs if not need.done]
                if each is work:
                    break
        return found

    def run_randomly(self) -> None:
        """Run a random number of kernels and copies that wait for nothing, drawn from the seed."""
        while self._random is not None and self._random.random() < self._eagerness:
            ready = self._ready()
            if not ready:
                return
            self._run(self._random.choice(ready))

    def step(self, work: Work) -> None:
        """Run one thing of what `work` waits for: somebody asks again and again about it."""
        while not work.done:
            first = self._queues[work.key][0]
            missing = first.missing()
            if missing is None:
                self._run(first)
                return
            work = missing

    def _ready(self) -> list[Work]:
        """The first work of each stream that waits for none."""
        first = (queue[0] for queue in self._queues.values() if queue)
        return [work for work in first if all(need.done for need in work.needs)]

    def _run(self, work: Work) -> None:
        run = self._taken(work)
        if run is not None:
            run()
        if self._early and not work.early:
            self._run_early()

    def _taken(self, work: Work) -> Any:
        """What is to be done, taken from its queue."""
        self._queues[work.key].popleft()
        run, work.run, work.done = work.run, None, True
        work.needs = ()
        if work.early:
            self._early -= 1
        return run

    def _run_early(self) -> None:
        """Run what is early, if nothing is before it but waits for what has been done."""
        while self._is_hasty and self._early:
            self._pass_waits()
            ready = [work for work in self._ready() if work.early]
            if not ready:
                return
            for work in ready:
                self._run(work)

    def _pass_waits(self) -> None:
        """Take the waits that are over from the heads of the queues: they do nothing."""
        passed = True
        while passed:  # one may wait for another
            passed = False
            for queue in self._queues.values():
                while queue and queue[0].run is None and queue[0].missing() is None:
                    self._taken(queue[0])
                    passed = True

    def clear(self) -> None:
        """Forget all work without running it."""
        for queue in self._queues.values():
            for work in queue:
                work.done, work.run = True, None
        self._queues.clear()
        self._early = 0

    def drop(self, index: int) -> None:
        """Forget the work of a device that is lost."""
        for key in self.streams(index):
            for work in self._queues[key]:
                self._early -= work.early
                work.done, work.run = True, None
            self._queues[key].clear()
