"""The ranks of a world as threads of one scheduler, and the errors where they stop.

Which of them runs is the scheduler's decision (`simgpu._explore.schedules`): that of the
schedule in force, or else one rank after the other.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simgpu._distributed.agreement import with_advice
from simgpu._explore.schedules import primitives, stalls, system_waits
from simgpu._explore.schedules.explore import controlled
from simgpu._explore.schedules.primitives import adopted_in_modules
from simgpu._explore.schedules.scheduler import Scheduler, current
from simgpu._explore.schedules.stalls import line_of
from simgpu._explore.schedules.strategies import Strategy, seeded
from simgpu._explore.schedules.tasks import Task, calling_task, standing_in
from simgpu._explore.schedules.tokens import Replay
from simgpu._util.patching import Patches
from simgpu.errors import DeadlockError, RankLostError, ScheduleError

# Questions in a row while no rank does anything else: the answer stays the same.
_MAX_IDLE_POLLS = 1000
_host_time = time.monotonic  # within a schedule it is another clock
_MADE_BY_CPP: Any = vars(threading)["_DummyThread"]


class _InTurn(Strategy):
    """Who runs goes on until it waits, or asks for what others do; then the next one that can.

    Time-outs come where no rank can go on, the earliest first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.order = self._order

    @staticmethod
    def _order(me: Task, ready: list[Task], expiring: list[Task], step: int) -> list[Task]:
        busy = [task for task in ready if not task.yielding]
        if me in busy:
            return [me]
        expiring = sorted(expiring, key=lambda task: (task.deadline or 0.0, task.number))
        due = [task for task in expiring if task.due]
        if not busy and due:  # those who ask in a loop have asked before
            return due[:1]
        able = busy or ready
        first = [task for task in able if task.number > me.number]
        return first or able or expiring[:1]


@contextlib.contextmanager
def scheduler_of(schedule: int | str | None) -> Iterator[Scheduler]:
    """The scheduler of the schedule in force; else one of a seed or token, or without choices."""
    inner = current()
    with contextlib.ExitStack() as ends:
        if inner is not None:
            scheduler = inner
        elif schedule is None:
            scheduler = Scheduler(_InTurn(), sys.maxsize, traced=False, real_time=True)
            patches = Patches()
            ends.callback(patches.undo)
            patches.apply((*primitives.WAITS, *system_waits.PATCHES))
        else:
            strategy = Replay(schedule) if isinstance(schedule, str) else seeded("random", schedule)
            scheduler = ends.enter_context(controlled(strategy)).scheduler
        ends.enter_context(adopted_in_modules())
        if inner is None and schedule is None:
            ends.enter_context(scheduler.running())
        yield scheduler


class RankScheduler:
    """The turns of the ranks of one world, numbered from 0."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tasks: list[Task] = []
        self._waiting: dict[Task, tuple[int, str]] = {}
        self._asked_in_vain = self._asked = self._other_steps = 0
        self.failures: dict[int, BaseException] = {}
        """What each rank raised, in the order in which they did."""
        self._failed_at: float | None = None  # real seconds
        self.stopped: BaseException | None = None
        """Why no rank can go on; each rank raises an error of its own, with its own frames."""

    def run(self, function: Callable[[int], None], states: Sequence[Any]) -> None:
        """Call it with each rank, in a thread with a state of its own, until all have ended."""
        scheduler = self._scheduler
        outer = scheduler.when_stuck, scheduler.when_resting
        scheduler.when_stuck, scheduler.when_resting = self._stop, self._end_sleepers
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
            scheduler.when_stuck, scheduler.when_resting = outer

    def _end(self) -> None:
        """End all ranks: those that wait raise the reason, the rest end at their next switch."""
        self._scheduler.dismiss([task for task in self._tasks if task not in self._waiting])
        for _ in range(3):
            with contextlib.suppress(ScheduleError):
                self._scheduler.wait_for(self._tasks)
                return
            self._scheduler.dismiss(self._tasks)

    def forget(self) -> None:
        """Keep no frames of ranks that have ended: a Work that outlives them leads here."""
        self.failures = {}

    def pause(self, what: str) -> None:
        """Run other ranks, if the scheduler decides so."""
        self.check()
        self._check_thread(what)
        self._scheduler.progress_at = self._scheduler.steps
        self._scheduler.point(what)

    def ask(self, rank: int, what: str) -> None:
        """Run others before a rank asks for what they do, as it may in a loop."""
        self.check()
        self._check_thread(what)
        if calling_task() is None:
            return
        scheduler = self._scheduler
        self._asked += 1
        with self._waits(rank, f"{what}, asked {_MAX_IDLE_POLLS} times in a row"):
            scheduler.point(what, yielding=True)
            other_steps = scheduler.steps - self._asked
            in_vain = other_steps == self._other_steps and not scheduler.others_may_help()
            self._asked_in_vain = self._asked_in_vain + 1 if in_vain else 0
            self._other_steps = other_steps
            if self._asked_in_vain > _MAX_IDLE_POLLS:
                self._stop()
        self.check()

    def wait(
        self, rank: int, ready: Callable[[], bool], what: str, seconds: float | None = None
    ) -> bool:
        """Run others until `ready()`; raises where that will never be.

        With `seconds` it is false where no rank can go on before.
        """
        if ready():
            return True
        self.check()
        self._check_thread(what)
        with contextlib.ExitStack() as stack:
            if calling_task() is None:  # a thread that C++ has made, for which the rank waits
                stack.enter_context(standing_in(self._tasks[rank]))
            if seconds is None:
                stack.enter_context(self._waits(rank, what))
            self._scheduler.block(lambda: ready() or self.stopped is not None, seconds, what)
        if not ready():
            self.check()
            return False
        return True

    @contextlib.contextmanager
    def _waits(self, rank: int, what: str) -> Iterator[None]:
        """Note what a thread of a rank waits for, for the error where no rank can go on."""
        task = calling_task()
        assert task is not None, "only a thread of the scheduler waits"
        self._waiting[task] = rank, what
        try:
            yield
        finally:
            del self._waiting[task]

    def _check_thread(self, what: str) -> None:
        """Raise for a thread that a rank has started, where no schedule gives it turns."""
        if calling_task() is None and type(threading.current_thread()) is not _MADE_BY_CPP:
            raise RuntimeError(
                f"{what}: {threading.current_thread().name} is a thread that a rank has started, "
                "and a rank takes its turns in its own thread. Call it there, or have the threads "
                "of ranks take turns, too: simgpu.ranks(n, fn, schedule=seed)"
            )

    def check(self) -> None:
        """Raise why no rank can go on, if that is so."""
        if self.stopped is not None:
            raise copy.copy(self.stopped)

    def is_stop(self, error: BaseException) -> bool:
        """Whether it is the error that no rank can go on."""
        stopped = self.stopped
        return type(error) is type(stopped) and str(error) == str(stopped)

    def _stop(self) -> bool:
        """Make each waiting rank raise that none can go on; true if any is made to.

        False where no rank waits, and where that was done before.
        """
        others = [
            task
            for task in self._tasks
            if self._scheduler.real_time and task.until is not None and task not in self._waiting
        ]
        if self.stopped is not None or not (self._waiting or others):
            return False
        self.stopped = self._reason_to_stop()
        for task in others:
            task.interrupt, task.until = copy.copy(self.stopped), None
        return True

    def _end_sleepers(self) -> bool:
        """End ranks that still ask in a loop, and sleep, long after another one has failed.

        torchrun ends all processes then.
        """
        if not self.failures:
            return False
        now = _host_time()
        self._failed_at = now if self._failed_at is None else self._failed_at
        return now - self._failed_at >= stalls.LONG and self._stop()

    def _reason_to_stop(self) -> BaseException:
        waiting: dict[int, str] = {}
        for rank, what in self._waiting.values():
            waiting[rank] = f"{waiting[rank]} and for {what}" if rank in waiting else what
        waits = [self._state(rank, waiting.get(rank)) for rank in range(len(self._tasks))]
        text = with_advice(f"no rank can go on: {'; '.join(waits)}")
        return RankLostError(text) if self.failures else DeadlockError(text)

    def _state(self, rank: int, what: str | None) -> str:
        if what is not None:
            return f"rank {rank} waits for {what}"
        if rank in self.failures:
            return f"rank {rank} has raised {type(self.failures[rank]).__name__}"
        task = self._tasks[rank]
        return f"rank {rank} has ended" if task.done else line_of(task).strip()
