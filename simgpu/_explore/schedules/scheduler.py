"""The scheduler of threads: one task runs at a time, and a strategy chooses the next.

Each task waits for a lock of its own, and the one that runs releases the lock of the next. A task
that comes to a point asks the strategy who goes on, resumes that task and waits to run again. A
task that waits has a predicate, so no task is woken: it can be chosen when the predicate is true,
or, if it waits with a time-out, at any moment, which then is the moment of the time-out.
"""

from __future__ import annotations

import itertools
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from simgpu._explore.schedules import stalls
from simgpu._explore.schedules.stalls import line_of, positions_outside, watched
from simgpu._explore.schedules.strategies import Choice, Strategy
from simgpu._explore.schedules.tasks import (
    Task,
    ThreadEnded,
    calling_task,
    ended_threads_unlogged,
    forget_task,
    outside,
    register_task,
    tasks_of_threads,
)
from simgpu._native.python_objects import raise_in_thread
from simgpu._util.interrupts import interrupts_wait
from simgpu.errors import DeadlockError, LivelockError, ScheduleError

_current: Scheduler | None = None
_start_thread = threading.Thread.start


def _forget_schedule() -> None:
    """In a forked child, which has one thread, and no schedule."""
    global _current
    _current = None
    stalls.watchdogs.clear()
    tasks_of_threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_schedule)


def current() -> Scheduler | None:
    """The scheduler of the schedule that is in force, or None."""
    return _current


TICK = 1e-6  # seconds that each step takes, so that loops which look at the clock come to an end
QUANTUM = 1000  # steps after which others who can go on have their turn
TURNS = 5 * QUANTUM  # steps of one thread, or without device work, after which a time-out comes
PATIENT = 10.0  # seconds from which a time-out is for emergencies: it comes if no thread can go on
MAX_IDLE = 100_000  # steps without device work, or a thread that begins or ends: a livelock
MAX_STEPS = 10_000_000
PATIENCE = 5.0  # real seconds for a thread to end
_STUBBORN = 100  # times that a thread may catch ThreadEnded and go on
_LOOK_EVERY = 0.2  # real seconds
_REST = 0.002  # real seconds between looks at what may come from outside
_LOOKS = 10  # times that nothing is there that may help: a thread that begins is not seen at once
join_thread = threading.Thread.join
_sleep_on_host, _host_time = time.sleep, time.monotonic
_number_of, _new_tuple = operator.attrgetter("number"), tuple.__new__


class Scheduler:
    """Runs threads one at a time; see the description of this folder.

    Attributes:
        now: seconds since the beginning, of the schedule's own clock.
        trace: every choice so far, if it is kept.
        when_stuck: called where no thread can go on; true if one can by then.
        when_resting: the same where all wait for real time to pass.
        steps, switches: points that were passed, and how often another task went on.
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
        self._positions_before = positions_outside() if real_time else {}
        self.strategy, self.max_steps, self._is_traced = strategy, max_steps, traced
        self._order, self._rank = strategy.order, strategy.rank
        self._observes_choices = type(strategy).chose is not Strategy.chose
        self.now = 0.0
        self.trace: list[Choice] = []
        self.steps = self.switches = self.progress_at = 0
        self.tasks: list[Task] = []
        self._alive: list[Task] = []
        self._failure: BaseException | None = None
        self.failed: BaseException | None = None
        self.over = self._draining = False
        self.when_stuck: Callable[[], bool] | None = None
        self.when_resting: Callable[[], bool] | None = None
        self._leaving: threading.Thread | None = None
        self._urgent: Task | None = None
        self._state_in_place: Any = None
        self._deciding = False
        self.running_task: Task | None = None
        self.left_behind: list[str] = []
        self.numbers = itertools.count()  # for objects that other code distinguishes by address

    def point(self, what: str, on: Any = None, yielding: bool = False) -> None:
        """Another thread may go on here; nothing in a thread outside the schedule."""
        me = calling_task()
        if me is None or self._deciding:  # a predicate that is asked has come here
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

        With `others`, which says whether a thread outside the schedule or another process may make
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
            me.due = 0.0 if timeout is None or others is None else _host_time() + timeout
        try:
            chosen = self._next(me)
            if chosen is not me:
                self._hand_over(me, chosen)
        finally:
            me.until = me.deadline = me.others = None
        self._raise_if_due(me)
        return not me.expired

    def block_for_any(
        self, until: Callable[[], bool], timeout: float | None, what: str, on: Any
    ) -> bool:
        """`block`, where a thread outside the schedule may make `until()` true as well."""
        return self.block(until, timeout, what, on, self.others_at_work)

    def _next(self, me: Task) -> Task:
        """The task that goes on; `me` runs and is at a yield point."""
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
            # Raised in the thread that entered the schedule, wherever it is.
            self._failure = self.failed = failure
            first = self.tasks[0]
            first.until = None
            return first
        finally:
            self._deciding = False

    def _chosen(self, me: Task) -> Task:
        """One of those that can go on, as the strategy says. What is called each time is here.

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
            if self._observes_choices:
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
                if task.due and ready and task.due > _host_time():
                    continue
                (patient if task.patient else expiring).append(task)
        if patient and not expiring and (not ready or self._is_time_to_pass(me)):
            expiring.append(min(patient, key=lambda task: (task.deadline, task.number)))
        return ready, expiring

    def _able_by_now(self, me: Task) -> tuple[list[Task], list[Task]]:
        """The same where no thread can go on, unless another thread enables one; or deadlock."""
        while stalls.others_make_progress(self._alive) or (
            self.when_stuck is not None and self.when_stuck()
        ):
            ready, expiring = self._able(me)
            if ready or expiring:
                return ready, expiring
        raise DeadlockError(stalls.of_deadlock(self._alive))

    def _able_in_time(self, me: Task, expiring: list[Task]) -> tuple[list[Task], list[Task]]:
        """The same where no thread can go on now: the first that can, once real time has passed."""
        self.resting, looks = True, 0
        try:
            while self._urgent is None and not self.over:
                if self.when_resting is not None and self.when_resting():
                    return self._able(me)
                first = min(expiring, key=lambda task: (task.deadline, task.number), default=None)
                left = 0.0 if first is None else first.due - _host_time()
                if first is not None and left <= 0:
                    return [], [first]
                looks = 0 if first is not None or self.others_may_help() else looks + 1
                if looks > _LOOKS or not any(task.others for task in self._alive):
                    return [], []
                _sleep_on_host(min(left, _REST) if first is not None else _REST)
                self.progress_at = self.steps
                ready, expiring = self._able(me)
                if ready:
                    return ready, expiring
            return [self.tasks[0]], []  # Ctrl-C, or the end: raised there
        finally:
            self.resting = False

    def others_at_work(self) -> bool:
        """Whether a thread outside the schedule may enable one of ours.

        One that was there before is where it was then if it has nothing to do, as the thread of a
        server or of a progress bar, which may wait for ever.
        """
        return any(
            self._positions_before.get(ident) != at for ident, at in positions_outside().items()
        )

    def others_may_help(self) -> bool:
        """Whether time, another process or a thread outside the schedule may enable a task."""
        return any(
            task.others is not None and (task.deadline is not None or task.others())
            for task in self._alive
        )

    def _be_fair(self, me: Task, ready: list[Task], expiring: list[Task]) -> None:
        """Make the others have a turn, and time pass, where threads wait in loops."""
        due = [task for task in expiring if (task.deadline or 0.0) <= self.now]
        if expiring and self._is_time_to_pass(me):
            ready.clear()
        elif due and me.run_length > QUANTUM:  # also where several keep each other company
            ready.clear()
            expiring[:] = due
        elif me.run_length > QUANTUM and len(ready) > 1 and me in ready:
            ready.remove(me)

    def _is_time_to_pass(self, me: Task) -> bool:
        idle, unbroken = self.steps - self.progress_at, me.run_length
        return (idle > 0 and idle % TURNS == 0) or (unbroken > 0 and unbroken % TURNS == 0)

    def _expire(self, task: Task) -> None:
        assert task.deadline is not None
        self.now = max(self.now, task.deadline)
        task.expired, task.until, task.deadline = True, None, None
        # For strategies that make time-outs come early: each time a little less so.
        task.expiries += 1
        task.hasty_after = self.steps + (16 << min(task.expiries, 12))

    def _check_steps(self) -> None:
        if self.steps - self.progress_at > MAX_IDLE or self.steps > self.max_steps:
            idle = self.steps - self.progress_at
            self.progress_at = self.steps
            self.max_steps = max(self.max_steps, self.steps + MAX_IDLE)
            raise LivelockError(stalls.of_livelock(self._alive, self.steps, idle))

    def _hand_over(self, me: Task, chosen: Task) -> None:
        self.switches += 1
        self.running_task = chosen
        if me.state is not chosen.state:
            self._put_away(me)
        me.waits_to_run = True  # Ctrl-C waits from here on
        chosen.may_run.release()
        try:
            if me.number:
                me.may_run.acquire()
            else:  # Ctrl-C may have come in another thread: look now and then
                self._wait_to_run(me)
        except BaseException as interrupt:  # raised by the handler of a signal
            if me.number and isinstance(interrupt, ThreadEnded):  # by `_wait_to_run`, a little late
                me.interrupt = interrupt
            else:
                self._interrupt(interrupt)
            # It may have come after this task was resumed.
            me.may_run.acquire(timeout=-1 if self.running_task is not me else PATIENCE / 50)
        me.waits_to_run = False
        if self._leaving is not None:
            # Whatever a thread does at its very end is done before another goes on.
            thread, self._leaving = self._leaving, None
            if thread is not me.find_thread():
                with outside(me):
                    join_thread(thread, PATIENCE)
        if self._state_in_place is not me.state and not self.over:
            self._put_in_place(me)

    def _wait_to_run(self, me: Task) -> None:
        """Task 0 waits; once it is interrupted, a thread that comes to no point is ended."""
        looks = 0
        while not me.may_run.acquire(timeout=_LOOK_EVERY):
            looks = 0 if me.interrupt is None else looks + 1
            if looks * _LOOK_EVERY > PATIENCE and self.running_task is not None:
                looks = 0
                raise_in_thread(self.running_task.ident, ThreadEnded)

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
                raise ThreadEnded  # a loop that catches every error, and asks again
            try:
                raise failure
            finally:
                del failure

    def interrupt(self) -> None:
        """Make KeyboardInterrupt be raised in task 0, where it is, at the next point of any."""
        self._interrupt(KeyboardInterrupt())

    def dismiss(self, tasks: Sequence[Task]) -> None:
        """Make those that have not ended end where they wait."""
        for task in tasks:
            if not task.done:
                task.interrupt, task.until = ThreadEnded(), None

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
        """End the schedule because of `error`, from outside, where `stuck` runs on."""
        self.failed, self.over = error, True
        for task in self.alive():
            if task is not stuck:
                task.resume()

    def _end_here(self, me: Task) -> None:
        """Raise ThreadEnded in a thread whose schedule is over."""
        if me.number == 0:
            raise self.failed or ThreadEnded
        me.ended_by += 1
        if me.ended_by > _STUBBORN:  # it catches everything and goes on: keep it here for good
            self.tasks[0].may_run.release()
            while True:
                me.may_run.acquire()  # which is never released
        raise ThreadEnded

    def spawn(
        self, function: Callable[..., Any], *args: Any, name: str = "", state: Any = None
    ) -> Task:
        """Run `function(*args)` in a new thread of the schedule; errors go to excepthook.

        With a `state`, see `Task`, this thread and those that it starts share it.
        """
        thread = threading.Thread(target=function, args=args, daemon=True)
        thread.name = name or getattr(function, "__name__", "thread")
        return self.start(thread, _start_thread, state)

    def start(
        self, thread: threading.Thread, stock_start: Callable[[Any], None], state: Any = None
    ) -> Task:
        """Start `thread` as a task of the schedule; the calling thread is one."""
        me = calling_task()
        if me is None:
            raise ScheduleError("only a thread of the schedule can start others in it")
        if self.over:
            self._end_here(me)
        if thread.ident is not None:  # the stock function has words for that
            stock_start(thread)
        task = Task(
            *(self, len(self.tasks), thread.name),
            find_thread=lambda: thread,
            daemon=thread.daemon,
            state=me.state if state is None else state,
        )
        run = vars(thread).get("run")

        def body() -> None:
            del vars(thread)["run"]
            if run is not None:
                vars(thread)["run"] = run
            self._live(task, thread)

        vars(thread)["run"] = body
        try:
            with outside(me):  # the handshake with the new thread is no matter of scheduling
                stock_start(thread)
        except BaseException:
            vars(thread).pop("run", None)
            raise
        self.tasks.append(task)
        self._alive.append(task)
        self.strategy.began(task)
        self.progress_at = self.steps
        self.point("start")
        return task

    def wait_for(self, tasks: Sequence[Task]) -> None:
        """Wait until these have ended."""
        for task in tasks:
            if not task.done:
                self.block(lambda task=task: task.done, None, f"join {task.number}", task)  # type: ignore[misc]

    def _live(self, task: Task, thread: threading.Thread) -> None:
        """What a started thread does: wait until it is resumed, run, and resume another."""
        register_task(task)
        task.may_run.acquire()
        try:
            if not self.over:
                if self._state_in_place is not task.state:
                    self._put_in_place(task)
                thread.run()
        except ThreadEnded:
            pass
        except BaseException:
            thread._invoke_excepthook(thread)  # type: ignore[attr-defined]
        finally:
            self._finish(task, thread)

    def _finish(self, task: Task, thread: threading.Thread) -> None:
        task.done = True
        task.what, task.until, task.deadline = "end", None, None
        self._alive.remove(task)
        self._leaving = thread
        task.find_thread, task.on = weakref.ref(thread), None  # both are over, and not kept
        self.progress_at = self.steps
        chosen = self.tasks[0] if self.over else self._next(task)
        if task.state is not chosen.state:
            self._put_away(task)
        forget_task(task)
        self.switches += 1
        self.running_task = chosen
        chosen.resume()

    @contextmanager
    def running(self) -> Iterator[Scheduler]:
        """Make the calling thread be task 0, and end what is left of the others at the end."""
        global _current
        if _current is not None or self.tasks:
            raise ScheduleError(
                "simgpu.schedule() is already active; schedules cannot be nested"
                if not self.tasks
                else "a scheduler runs once: make another one"
            )
        entering = threading.current_thread()
        first = Task(self, 0, entering.name, find_thread=lambda: entering)
        self.tasks.append(first)
        self._alive.append(first)
        self.running_task = first
        self.strategy.began(first)
        register_task(first)
        _current = self
        try:
            try:
                with (
                    interrupts_wait(lambda: first.waits_to_run, self.interrupt),
                    watched(self),
                ):
                    yield self
            except BaseException as error:
                if self.failed is None or not isinstance(error, (ThreadEnded, Exception)):
                    raise
                by_itself = error is self.failed
                raise self._taken() from (None if by_itself else error)
            else:
                self._drain(first)
                self.strategy.ended(self.trace)
        finally:
            try:
                with ended_threads_unlogged():
                    self._end_others(first)
            finally:
                forget_task(first)
                _current = None
        if self.failed is not None:  # and the program has caught it
            raise self._taken()

    def _taken(self) -> BaseException:
        """What the schedule has failed by, which is kept no longer: its frames lead to this."""
        failed, self.failed = self.failed, None
        assert failed is not None, "it is asked for where there is one"
        return failed

    def _drain(self, first: Task) -> None:
        """Make the others go on until each has ended or waits for what will not come."""
        self._draining = True
        try:
            self.block(lambda: False, None, "end")
        finally:
            self._draining = False

    def _end_others(self, first: Task) -> None:
        self.left_behind = [line_of(task) for task in self._alive if task is not first]
        self.over = True
        for task in list(self._alive):
            if task is not first and not task.done:
                thread = task.find_thread()
                task.until = None
                task.resume()
                first.may_run.acquire(timeout=PATIENCE)
                if thread is not None and task.done:
                    with outside(first):
                        join_thread(thread, PATIENCE)
        self._leaving = None
