"""`Baton`: threads that run one at a time, and switch where they wait for each other.

Whoever waits says for what. Where nobody can go on, all of them are told so, and the error names
what each one waits for. The order is the same each time, or that of a seed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from simgpu.errors import DeadlockError, RankLostError


@dataclass(frozen=True)
class Waiting:
    """What a rank waits for."""

    ready: Callable[[], bool]
    what: str


class Baton:
    """The turns of `count` ranks, numbered from 0; `seed` None is one after the other.

    `leaves` and `enters` are called with a rank, in its thread, when it gives its turn away and
    when it gets it.
    """

    def __init__(
        self,
        count: int,
        seed: int | None,
        leaves: Callable[[int], None],
        enters: Callable[[int], None],
    ) -> None:
        self._count = count
        self._numbers = None if seed is None else random.Random(seed)
        self._leaves, self._enters = leaves, enters
        self._turns = [threading.Semaphore(0) for _ in range(count)]
        self._waiting = {rank: Waiting(lambda: True, "its start") for rank in range(count)}
        self._over = threading.Event()
        self.failures: dict[int, BaseException] = {}
        """What each rank raised, in the order in which they did."""
        self.stopped: BaseException | None = None
        """Why nobody can go on."""

    def run(self) -> None:
        """Let the ranks run, from the thread that has started theirs, until all have ended."""
        self._pass_on(self._count - 1)
        try:
            self._over.wait()
        except BaseException as error:  # Ctrl-C: let them end, too
            self.stopped = RankLostError(f"the ranks were interrupted by {type(error).__name__}")
            self._over.wait()
            raise

    def begin(self, rank: int) -> None:
        """Wait for the first turn."""
        self._turns[rank].acquire()
        del self._waiting[rank]
        self._enters(rank)

    def end(self, rank: int) -> None:
        """Give the turn away for good."""
        self._leaves(rank)
        self._pass_on(rank)

    def wait(self, rank: int, ready: Callable[[], bool], what: str) -> None:
        """Let others run until `ready()`; raises where that will never be."""
        while not ready():
            self._check()
            self._switch(rank, Waiting(ready, what))

    def pause(self, rank: int) -> None:
        """Let others run, if the seed says so."""
        self._check()
        if self._numbers is not None and self._waiting and self._numbers.random() < 0.5:
            self._switch(rank, Waiting(lambda: True, "its turn"))

    def _check(self) -> None:
        if self.stopped is not None:
            raise self.stopped

    def _switch(self, rank: int, waiting: Waiting) -> None:
        self._waiting[rank] = waiting
        self._leaves(rank)
        self._pass_on(rank)
        self._turns[rank].acquire()
        del self._waiting[rank]
        self._enters(rank)
        if not waiting.ready():
            self._check()

    def _pass_on(self, last: int) -> None:
        if not self._waiting:
            self._over.set()
            return
        ready = [rank for rank, waiting in self._waiting.items() if waiting.ready()]
        if not ready:
            if self.stopped is None:
                self.stopped = self._why_nobody_can()
            ready = [min(self._waiting)]
        self._turns[self._choose(ready, last)].release()

    def _choose(self, ready: list[int], last: int) -> int:
        if self._numbers is not None:
            return self._numbers.choice(sorted(ready))
        return min(ready, key=lambda rank: (rank - last - 1) % self._count)

    def _why_nobody_can(self) -> BaseException:
        told = [
            f"rank {rank} waits for {self._waiting[rank].what}"
            if rank in self._waiting
            else f"rank {rank} has raised {type(self.failures[rank]).__name__}"
            if rank in self.failures
            else f"rank {rank} has ended"
            for rank in range(self._count)
        ]
        text = f"no rank can go on: {'; '.join(told)}"
        return RankLostError(text) if self.failures else DeadlockError(text)
