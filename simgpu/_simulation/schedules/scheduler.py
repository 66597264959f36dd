"""The threads of a schedule: how they begin, live and end, and with them the schedule itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from simgpu._simulation.schedules import reports
from simgpu._simulation.schedules.baton import PATIENCE, Baton, join_thread
from simgpu._simulation.schedules.signals import interrupts_wait
from simgpu._simulation.schedules.tasks import (
    Ended,
    Task,
    calling_task,
    forget,
    forget_all,
    no_words_of_ended,
    outside,
    register,
)
from simgpu._simulation.schedules.watchdog import watched
from simgpu.errors import ScheduleError

_current: Scheduler | None = None
_start_thread = threading.Thread.start


def _forget_schedule() -> None:
    """In a forked child, which has one thread, and no schedule."""
    global _current
    _current = None
    forget_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_schedule)


def current() -> Scheduler | None:
    """The scheduler of the schedule that is in force, or None."""
    return _current


class Scheduler(Baton):
    """Runs threads one at a time; see the description of this folder."""

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
        task = Task(self, len(self.tasks), thread.name)
        task.thread, task.daemon = thread, thread.daemon
        task.state = me.state if state is None else state
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
        """What a started thread does: wait for the baton, run, and give it to another."""
        register(task)
        task.baton.acquire()
        try:
            if not self.over:
                if self._state_in_place is not task.state:
                    self._put_in_place(task)
                thread.run()
        except Ended:
            pass
        except BaseException:
            thread._invoke_excepthook(thread)  # type: ignore[attr-defined]
        finally:
            self._finish(task)

    def _finish(self, task: Task) -> None:
        task.done = True
        task.what, task.until, task.deadline = "end", None, None
        self._alive.remove(task)
        self._leaving = task.thread
        task.let_go()
        self.progress_at = self.steps
        chosen = self.tasks[0] if self.over else self._next(task)
        if task.state is not chosen.state:
            self._put_away(task)
        forget(task)
        self.switches += 1
        self.running_task = chosen
        chosen.give_baton()

    @contextmanager
    def running(self) -> Iterator[Scheduler]:
        """Let the calling thread be task 0, and end what is left of the others at the end."""
        global _current
        if _current is not None or self.tasks:
            raise ScheduleError(
                "a schedule is in force already, and there is one baton: leave its block first"
                if not self.tasks
                else "a scheduler runs once: make another one"
            )
        first = Task(self, 0, threading.current_thread().name)
        first.thread = threading.current_thread()
        self.tasks.append(first)
        self._alive.append(first)
        self.running_task = first
        self.strategy.began(first)
        register(first)
        _current = self
        try:
            try:
                with interrupts_wait(lambda: first.in_line, self.interrupt), watched(self):
                    yield self
            except BaseException as error:
                if self.failed is None or not isinstance(error, (Ended, Exception)):
                    raise
                by_itself = error is self.failed
                raise self._taken() from (None if by_itself else error)
            else:
                self._drain(first)
                self.strategy.ended(self.trace)
        finally:
            try:
                with no_words_of_ended():
                    self._end_others(first)
            finally:
                forget(first)
                _current = None
        if self.failed is not None:  # and the program has caught it
            raise self._taken()

    def _taken(self) -> BaseException:
        """What the schedule has failed by, which is kept no longer: its frames lead to this."""
        failed, self.failed = self.failed, None
        assert failed is not None, "it is asked for where there is one"
        return failed

    def _drain(self, first: Task) -> None:
        """Let the others go on until each has ended or waits for what will not come."""
        self._draining = True
        try:
            self.block(lambda: False, None, "end")
        finally:
            self._draining = False

    def _end_others(self, first: Task) -> None:
        self.left_behind = [reports.line_of(task) for task in self._alive if task is not first]
        self.over = True
        for task in list(self._alive):
            if task is not first and not task.done:
                thread = task.thread
                task.until = None
                task.give_baton()
                first.baton.acquire(timeout=PATIENCE)
                if thread is not None and task.done:
                    with outside(first):
                        join_thread(thread, PATIENCE)
        self._leaving = None
