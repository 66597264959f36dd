"""`Turns`: the ranks of a world as threads of one scheduler, and what is told where they stop.

Which of them runs is the scheduler's decision (`simgpu._simulation.schedules`): that of the
schedule in force, or else one rank after the other.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simgpu._simulation.schedules import reports
from simgpu._simulation.schedules.block import controlled, seeded
from simgpu._simulation.schedules.replays import Replay
from simgpu._simulation.schedules.scheduler import Scheduler, current
from simgpu._simulation.schedules.strategies import Strategy
from simgpu._simulation.schedules.tasks import Task, calling_task, standing_in
from simgpu.errors import DeadlockError, RankLostError, ScheduleError


class _InTurn(Strategy):
    """Who runs goes on until it waits; then the next one after it that can."""

    def __init__(self) -> None:
        super().__init__()
        self.order = self._order

    @staticmethod
    def _order(me: Task, ready: list[Task], expiring: list[Task], step: int) -> list[Task]:
        if me in ready:
            return [me]
        first = [task for task in ready if task.number > me.number]
        return first or ready or expiring


@contextlib.contextmanager
def scheduler_of(schedule: int | str | None) -> Iterator[Scheduler]:
    """The scheduler of the schedule in force; else one of a seed or token, or without choices."""
    inner = current()
    if inner is not None:
        yield inner
    elif schedule is None:
        scheduler = Scheduler(_InTurn(), sys.maxsize, traced=False)
        with scheduler.running(watch=False):
            yield scheduler
    else:
        strategy = Replay(schedule) if isinstance(schedule, str) else seeded("random", schedule)
        with controlled(strategy) as controls:
            yield controls.scheduler


class Turns:
    """The turns of the ranks of one world, numbered from 0."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tasks: list[Task] = []
        self._waiting: dict[int, str] = {}
        self.failures: dict[int, BaseException] = {}
        """What each rank raised, in the order in which they did."""
        self.stopped: BaseException | None = None
        """Why nobody can go on."""

    def run(self, function: Callable[[int], None], states: Sequence[Any]) -> None:
        """Call it with each rank, in a thread with a state of its own, until all have ended."""
        scheduler = self._scheduler
        outer, scheduler.when_stuck = scheduler.when_stuck, self._stop
        try:
            for rank, state in enumerate(states):
                name = f"rank {rank}"
                self._tasks.append(scheduler.spawn(function, rank, name=name, state=state))
            scheduler.wait_for(self._tasks)
        except BaseException as error:  # Ctrl-C, or an end of the schedule
            if not scheduler.over:
                cause = type(error).__name__
                self.stopped = RankLostError(f"the ranks were interrupted by {cause}")
                self._end()
            raise
        finally:
            scheduler.when_stuck = outer

    def _end(self) -> None:
        """Let all ranks end: those that wait for others hear why, the rest ends where it waits."""
        for _ in range(3):
            with contextlib.suppress(ScheduleError):
                self._scheduler.wait_for(self._tasks)
                return
            self._scheduler.dismiss(self._tasks)

    def pause(self, rank: int, what: str) -> None:
        """Let others run, if the scheduler says so."""
        self.check()
        self._scheduler.progress_at = self._scheduler.steps
        self._scheduler.point(what)

    def wait(self, rank: int, ready: Callable[[], bool], what: str) -> None:
        """Let others run until `ready()`; raises where that will never be."""
        if ready():
            return
        self.check()
        self._waiting[rank] = what
        with contextlib.ExitStack() as stack:
            if calling_task() is None:  # a thread that C++ or the rank itself has made
                stack.enter_context(standing_in(self._tasks[rank]))
            self._scheduler.block(lambda: ready() or self.stopped is not None, None, what)
        del self._waiting[rank]
        if not ready():
            self.check()

    def check(self) -> None:
        """Raise why nobody can go on, if that is so."""
        if self.stopped is not None:
            raise self.stopped

    def _stop(self) -> bool:
        """Nobody can go on: tell all who wait. False where none of them does, or all are told."""
        if self.stopped is not None or not self._waiting:
            return False
        self.stopped = self._why_nobody_can()
        return True

    def _why_nobody_can(self) -> BaseException:
        told = [
            f"rank {rank} waits for {self._waiting[rank]}"
            if rank in self._waiting
            else f"rank {rank} has raised {type(self.failures[rank]).__name__}"
            if rank in self.failures
            else f"rank {rank} has ended"
            if task.done
            else reports.line_of(task).strip()
            for rank, task in enumerate(self._tasks)
        ]
        text = f"no rank can go on: {'; '.join(told)}"
        return RankLostError(text) if self.failures else DeadlockError(text)
