"""The baton that the threads of a schedule hand to each other: one of them runs at a time.

Textbooks call it passing the baton: each task waits for a lock of its own, and the one that runs
releases the lock of the next.

A task that comes to a point asks the strategy who goes on, gives that task the baton and waits for
its own. A task that waits has a predicate, so nobody is woken: it can be chosen when the predicate
is true, or, if it waits with a time-out, at any moment, which then is the moment of the time-out.
"""

from __future__ import annotations

import itertools
import operator
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from simgpu._native.asynchronous_errors import raise_in_thread
from simgpu._simulation.schedules import reports
from simgpu._simulation.schedules.strategies import Strategy
from simgpu._simulation.schedules.tasks import Choice, Ended, Task, calling_task, outside
from simgpu.errors import DeadlockError, LivelockError, ScheduleError

TICK = 1e-6  # seconds that each step takes, so that loops which look at the clock come to an end
QUANTUM = 1000  # steps after which others who can go on have their turn
TURNS = 5 * QUANTUM  # steps of one thread, or without device work, after which a time-out comes
PATIENT = 10.0  # seconds from which on a time-out is for emergencies: it comes if nobody can go on
MAX_IDLE = 100_000  # steps without device work, or a thread that begins or ends: a livelock
MAX_STEPS = 10_000_000
PATIENCE = 5.0  # real seconds for a thread to end
_STUBBORN = 100  # times that a thread may catch Ended and go on
_LOOK_EVERY = 0.2  # real seconds
_REST = 0.002  # real seconds between looks at what may come from outside
_LOOKS = 10  # times that nobody is there who may help: a thread that begins is not seen at once
_sleep, _now = time.sleep, time.monotonic  # of the host
join_thread = threading.Thread.join
_number_of, _new_tuple = operator.attrgetter("number"), tuple.__new__


class Baton:
    """Decides which of its threads runs; `Scheduler` starts and ends them.

    Attributes:
        now: seconds since the beginning, of the schedule's own clock.
        trace: every choice so far, if it is kept.
        when_stuck: called where no thread can go on; true if one can by then.
        steps, switches: points that were passed, and how often the baton changed hands.
        real_time: whether sleeps and waits for others than tasks take real time. The order in
            which sleeps end is that of the schedule's clock all the same.
        resting: whether no task can go on before real time has passed.
    """

    def __init__(
        self,
        strategy: Strategy,
        max_steps: int = MAX_STEPS,
        *,
        traced: bool = True,
        real_time: bool = False,
    ) -> None:
        self.real_time, self.resting = real_time, False
        self.strategy, self.max_steps, self._is_traced = strategy, max_steps, traced
        self._order, self._rank = strategy.order, strategy.rank
        self._is_told = type(strategy).chose is not Strategy.chose
        self.now = 0.0
        self.trace: list[Choice] = []
        self.steps = self.switches = self.progress_at = 0
        self.tasks: list[Task] = []
        self._alive: list[Task] = []
        self._failure: BaseException | None = None
        self.failed: BaseException | None = None
        self.over = self._draining = False
        self.when_stuck: Callable[[], bool] | None = None
        self._leaving: threading.Thread | None = None
        self._urgent: Task | None = None
        self._state_in_place: Any = None
        self._deciding = False
        self.running_task: Task | None = None
        self.left_behind: list[str] = []
        self.numbers = itertools.count()  # for what is told apart by its address elsewhere

    def point(self, what: str, on: Any = None, yielding: bool = False) -> None:
        """Another thread may go on here; nothing in a thread of no schedule."""
        me = calling_task()
        if me is None or self._deciding:  # what somebody waits for is asked by one of these calls
            return
        if self.over:
            self._end_here(me)
        me.what, me.on, me.yielding = what, on, yielding
        chosen = self._next(me)
        if chosen is not me:
            self._hand_over(me, chosen)
        me.yielding = False
        if self._failure is not None or self.over or me.interrupt is not None:
            self._raise_if_due(me)

    def block(
        self, until: Callable[[], bool], timeout: float | None = None, what: str = "wait",
        on: Any = None, others: Callable[[], bool] | None = None,
    ) -> bool:  # fmt: skip
        """Go on when `until()` is true, or the time-out is chosen to come first: then False.

        With `others`, which says whether a thread of no schedule or another process may make
        `until()` true, the wait takes real time in a scheduler of real time.
        """
        me = calling_task()
        if me is None:
            raise ScheduleError("only a thread of the schedule can wait in it")
        if self.over:
            self._end_here(me)
        me.what, me.on, me.until, me.expired = what, on, until, False
        me.deadline = None if timeout is None else self.now + max(timeout, 0.0)
        me.patient = timeout is not None and timeout >= PATIENT
        if self.real_time:
            me.others = others
            me.due = 0.0 if timeout is None or others is None else _now() + timeout
        try:
            chosen = self._next(me)
            if chosen is not me:
                self._hand_over(me, chosen)
        finally:
            me.until = me.deadline = me.others = None
        self._raise_if_due(me)
        return not me.expired

    def _next(self, me: Task) -> Task:
        """The task that goes on; `me` has the baton and stands at a point."""
        self.steps += 1
        self.now += TICK
        self._deciding = True
        try:
            if self._urgent is not None:
                urgent, self._urgent = self._urgent, None
                urgent.until = None
                return urgent
            return self._chosen(me)
        except BaseException as failure:
            # Told in the thread that entered the schedule, wherever it stands.
            self._failure = self.failed = failure
            first = self.tasks[0]
            first.until = None
            return first
        finally:
            self._deciding = False

    def _chosen(self, me: Task) -> Task:
        """One of those that can go on, as the strategy says. What is called each time stands here.

        All of it happens while every other thread waits.
        """
        ready, expiring = self._able(me)
        if self._draining:
            return self._next_to_drain(ready, expiring)
        if self.real_time and not ready:
            ready, expiring = self._able_in_time(me, expiring)
        if not ready and not expiring:
            ready, expiring = self._able_by_now(me)
        idle = self.steps - self.progress_at
        if idle > QUANTUM or me.run_length > QUANTUM or self.steps > self.max_steps:
            self._check_steps()
            self._be_fair(me, ready, expiring)
        if len(ready) + len(expiring) == 1:
            chosen = (ready or expiring)[0]
        else:
            options = self._order(me, ready, expiring, self.steps)
            rank = self._rank(options, me, len(self.trace))
            chosen = options[rank]
            if self._is_traced:
                # What Choice(...) does, without a call of Python.
                entry = (me.number, me.what, tuple(map(_number_of, options)), rank)
                self.trace.append(_new_tuple(Choice, entry))
            if self._is_told:
                self.strategy.chose(self.trace)
        me.run_length = me.run_length + 1 if chosen is me else 0
        if expiring and chosen in expiring:
            self._expire(chosen)
        return chosen

    def _able(self, me: Task) -> tuple[list[Task], list[Task]]:
        """Those that can go on, and those for which a time-out can come."""
        ready: list[Task] = []
        expiring: list[Task] = []
        patient: list[Task] = []
        for task in self._alive:
            until = task.until
            if until is None or until():
                ready.append(task)
            elif task.deadline is not None:
                if task.due and ready and task.due > _now():
                    continue
                (patient if task.patient else expiring).append(task)
        if patient and not expiring and (not ready or self._is_time_to_pass(me)):
            expiring.append(min(patient, key=lambda task: (task.deadline, task.number)))
        return ready, expiring

    def _able_by_now(self, me: Task) -> tuple[list[Task], list[Task]]:
        """The same where nobody can go on, unless a thread from elsewhere lets one; or deadlock."""
        while reports.others_make_progress(self._alive) or (
            self.when_stuck is not None and self.when_stuck()
        ):
            ready, expiring = self._able(me)
            if ready or expiring:
                return ready, expiring
        raise DeadlockError(reports.of_deadlock(self._alive))

    def _able_in_time(self, me: Task, expiring: list[Task]) -> tuple[list[Task], list[Task]]:
        """The same where nobody can go on now: who can first, once real time has passed."""
        self.resting, looks = True, 0
        try:
            while self._urgent is None and not self.over:
                first = min(expiring, key=lambda task: (task.deadline, task.number), default=None)
                left = 0.0 if first is None else first.due - _now()
                if first is not None and left <= 0:
                    return [], [first]
                looks = 0 if first is not None or self.others_may_help() else looks + 1
                if looks > _LOOKS or not any(task.others for task in self._alive):
                    return [], []
                _sleep(min(left, _REST) if first is not None else _REST)
                self.progress_at = self.steps
                ready, expiring = self._able(me)
                if ready:
                    return ready, expiring
            return [self.tasks[0]], []  # Ctrl-C, or the end: raised there
        finally:
            self.resting = False

    def others_may_help(self) -> bool:
        """Whether time, another process or a thread of no schedule may let a task go on."""
        return any(
            task.others is not None and (task.deadline is not None or task.others())
            for task in self._alive
        )

    def _be_fair(self, me: Task, ready: list[Task], expiring: list[Task]) -> None:
        """Let the others have a turn, and time pass, where threads wait in loops."""
        due = [task for task in expiring if (task.deadline or 0.0) <= self.now]
        if expiring and self._is_time_to_pass(me):
            ready.clear()
        elif due and me.run_length > QUANTUM:  # also where several keep each other company
            ready.clear()
            expiring[:] = due
        elif me.run_length > QUANTUM and len(ready) > 1 and me in ready:
            ready.remove(me)

    def _is_time_to_pass(self, me: Task) -> bool:
        idle, alone = self.steps - self.progress_at, me.run_length
        return (idle > 0 and idle % TURNS == 0) or (alone > 0 and alone % TURNS == 0)

    def _expire(self, task: Task) -> None:
        assert task.deadline is not None
        self.now = max(self.now, task.deadline)
        task.expired, task.until, task.deadline = True, None, None
        # For strategies that let time-outs come early: each time a little less so.
        task.expiries += 1
        task.hasty_after = self.steps + (16 << min(task.expiries, 12))

    def _check_steps(self) -> None:
        if self.steps - self.progress_at > MAX_IDLE or self.steps > self.max_steps:
            idle = self.steps - self.progress_at
            self.progress_at = self.steps
            self.max_steps = max(self.max_steps, self.steps + MAX_IDLE)
            raise LivelockError(reports.of_livelock(self._alive, self.steps, idle))

    def _hand_over(self, me: Task, chosen: Task) -> None:
        self.switches += 1
        self.running_task = chosen
        if me.state is not chosen.state:
            self._put_away(me)
        me.in_line = True  # Ctrl-C waits from here on
        chosen.baton.release()
        try:
            if me.number:
                me.baton.acquire()
            else:  # the system may have told another thread of Ctrl-C: look now and then
                self._await_baton(me)
        except BaseException as interrupt:  # raised by the handler of a signal
            if me.number and isinstance(interrupt, Ended):  # by `_await_baton`, a little late
                me.interrupt = interrupt
            else:
                self._interrupt(interrupt)
            # It may have come after the baton.
            me.baton.acquire(timeout=-1 if self.running_task is not me else PATIENCE / 50)
        me.in_line = False
        if self._leaving is not None:
            # Whatever a thread does at its very end is done before another goes on.
            thread, self._leaving = self._leaving, None
            if thread is not me.thread:
                with outside(me):
                    join_thread(thread, PATIENCE)
        if self._state_in_place is not me.state and not self.over:
            self._put_in_place(me)

    def _await_baton(self, me: Task) -> None:
        """Task 0 waits; once it is interrupted, a thread that comes to no point is ended."""
        looks = 0
        while not me.baton.acquire(timeout=_LOOK_EVERY):
            looks = 0 if me.interrupt is None else looks + 1
            if looks * _LOOK_EVERY > PATIENCE and self.running_task is not None:
                looks = 0
                raise_in_thread(self.running_task.ident, Ended)

    def _put_away(self, me: Task) -> None:
        if me.state is not None:
            with outside(me):
                me.state.save()

    def _put_in_place(self, me: Task) -> None:
        self._state_in_place = me.state
        if me.state is not None:
            with outside(me):
                me.state.restore()

    def _raise_if_due(self, me: Task) -> None:
        if self.over:
            self._end_here(me)
        if me.interrupt is not None:
            interrupt, me.interrupt, self._urgent = me.interrupt, None, None
            try:
                raise interrupt
            finally:
                del interrupt  # which this frame would keep, and it the frame
        if me.number == 0 and self._failure is not None:
            failure, self._failure = self._failure, None
            me.ended_by += 1
            if me.ended_by > _STUBBORN:
                raise Ended  # a loop that catches every error, and asks again
            try:
                raise failure
            finally:
                del failure

    def interrupt(self) -> None:
        """Let KeyboardInterrupt be raised in task 0, where it stands, at the next point of any."""
        self._interrupt(KeyboardInterrupt())

    def dismiss(self, tasks: Sequence[Task]) -> None:
        """Let those that have not ended end where they wait."""
        for task in tasks:
            if not task.done:
                task.interrupt, task.until = Ended(), None

    def _interrupt(self, interrupt: BaseException) -> None:
        first = self.tasks[0]
        first.interrupt, self._urgent = interrupt, first

    def _next_to_drain(self, ready: list[Task], expiring: list[Task]) -> Task:
        able = ready + [task for task in expiring if not task.daemon]
        if not able or self.steps - self.progress_at > MAX_IDLE:
            return self.tasks[0]
        if able[0] in expiring:
            able.sort(key=lambda task: (task.deadline or 0.0, task.number))
            self._expire(able[0])
        return able[0]

    def alive(self) -> list[Task]:
        """The tasks that have not ended."""
        return list(self._alive)

    def give_up(self, stuck: Task, error: BaseException) -> None:
        """End the schedule because of `error`, from outside, where `stuck` keeps the baton."""
        self.failed, self.over = error, True
        for task in self.alive():
            if task is not stuck:
                task.give_baton()

    def _end_here(self, me: Task) -> None:
        """Raise Ended in a thread that the schedule is over for."""
        if me.number == 0:
            raise self.failed or Ended
        me.ended_by += 1
        if me.ended_by > _STUBBORN:  # it catches everything and goes on: let it stand here for good
            self.tasks[0].baton.release()
            while True:
                me.baton.acquire()  # which nobody gives back any more
        raise Ended
