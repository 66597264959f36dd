"""The scheduler of threads: one task runs at a time, and a strategy chooses the next."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import linecache
import logging
import operator
import os
import queue
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import _base, thread
from concurrent.futures._base import LOGGER
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from simgpu._native.python_objects import raise_in_thread
from simgpu._util.frames import current_frames, is_of_program, is_own, module_of
from simgpu._util.interrupts import interrupts_wait
from simgpu._util.naming import plural
from simgpu.errors import DeadlockError, LivelockError, ScheduleError, UncontrolledWaitError

# A thread of a schedule, and which thread of the process is which.

_start_raw_thread, _new_lock = _thread.start_new_thread, _thread.allocate_lock
# By the identifier of the thread; a thread that is not in here is no business of any schedule.
_tasks: dict[int, Task] = {}


class ThreadEnded(SystemExit):
    """Ends a thread that its schedule is over for; Python ends threads by it in silence."""


class Choice(NamedTuple):
    """One moment in which several threads could go on."""

    task: int  # which one ran
    what: str  # its state
    options: tuple[int, ...]  # who could go on, in the order of the strategy
    rank: int  # which of these went on


def _held_lock() -> _thread.LockType:
    lock = _new_lock()
    lock.acquire()
    return lock


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """One thread of a schedule.

    Attributes:
        number: in the order in which they were started; 0 is the thread that entered the schedule.
        until: what it waits for, or None if it can go on.
        deadline: until when, in seconds of the schedule; None for ever.
        waits_to_run: whether another task runs, and it waits for its lock.
        interrupt: what is to be raised in it at its next point.
        patient: whether its time-out comes only where no other thread can go on.
        others: where it waits in real time, whether something other than a task may end its wait.
        due: when its time-out comes in real time; 0 where that takes no time.
        expired: whether the time-out came first.
        what: its state, in a word; `on` is what it waits for, if there is an object.
        priority, hasty_after: for the strategies.
        thread: the object of Python; None once it has ended and the program keeps it no longer.
        state: what its threads have of their own in the process, with `save` and `restore`; other
            threads find theirs. None for those that share everything.
    """

    scheduler: Any
    number: int
    name: str
    may_run: Any = field(default_factory=_held_lock)
    ident: int = 0
    _thread: threading.Thread | weakref.ref[threading.Thread] | None = None
    daemon: bool = False
    until: Callable[[], bool] | None = None
    deadline: float | None = None
    others: Callable[[], bool] | None = None
    due: float = 0.0
    expired: bool = False
    done: bool = False
    yielding: bool = False
    waits_to_run: bool = False
    patient: bool = False
    interrupt: BaseException | None = None
    what: str = "start"
    on: Any = None
    run_length: int = 0
    expiries: int = 0
    hasty_after: int = 0
    ended_by: int = 0
    priority: float = 0.0
    state: Any = None

    @property
    def thread(self) -> threading.Thread | None:
        return self._thread() if isinstance(self._thread, weakref.ref) else self._thread

    @thread.setter
    def thread(self, thread: threading.Thread) -> None:
        self._thread = thread

    def release(self) -> None:
        """Keep neither the thread, which has ended, nor what it waited for."""
        if isinstance(self._thread, threading.Thread):
            self._thread = weakref.ref(self._thread)
        self.on = None

    def resume(self) -> None:
        """Make it go on; nothing where it goes on already."""
        with contextlib.suppress(RuntimeError):
            self.may_run.release()

    def __repr__(self) -> str:
        return f"thread {self.number} ({self.name})"


def calling_task() -> Task | None:
    """The task of the calling thread; None if it belongs to no schedule."""
    return _tasks.get(_thread.get_ident())


def register_task(task: Task) -> None:
    """The calling thread is this task from now on."""
    task.ident = _thread.get_ident()
    _tasks[task.ident] = task


def forget_task(task: Task) -> None:
    """The thread of this task is no business of the schedule any more."""
    if _tasks.get(task.ident) is task:
        del _tasks[task.ident]


@contextmanager
def outside(task: Task) -> Iterator[None]:
    """Within the block the calling thread waits for real, as a thread outside the schedule."""
    forget_task(task)
    try:
        yield
    finally:
        _tasks[task.ident] = task


@contextmanager
def standing_in(task: Task) -> Iterator[None]:
    """Within the block the calling thread, outside of any schedule, waits for its task's turn."""
    ident = _thread.get_ident()
    _tasks[ident] = task
    try:
        yield
    finally:
        del _tasks[ident]


@contextmanager
def no_words_of_ended() -> Iterator[None]:
    """Within the block, pools do not log that their threads have ended by Ended."""

    def says_something(record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], ThreadEnded))

    LOGGER.addFilter(says_something)
    try:
        yield
    finally:
        LOGGER.removeFilter(says_something)


# What every thread of a schedule waits for, and at which line: the text of a deadlock.

_LIBRARY = {threading.__file__, queue.__file__, _base.__file__, thread.__file__}
_HERE = str(Path(__file__).parents[2])
_sleep_on_host, _host_time = time.sleep, time.monotonic
_watchdogs: set[int] = set()  # the threads that look after schedules
_CHECK_EVERY, _CHECKS, _LONGEST = 0.01, 3, 0.5  # seconds, times without a movement, seconds

_WORDS = {
    "thread": "waits for the end of a thread",
    "process": "waits for a child process",
    "socket": "waits for a socket or a pipe",
    "lock": "waits for a lock",
    "file": "waits for the lock of a file",
    "queue.get": "waits for an item of a queue",
    "condition": "waits on a condition (an event, barrier, semaphore, queue or future)",
    "sleep": "sleeps",
    "event": "asks whether an event is set",
    "start": "can go on",
    "end": "has left the block of the schedule",
}


def of_deadlock(tasks: Sequence[Task]) -> str:
    """The text of the error when no thread can go on."""
    head = "deadlock: no thread can go on"
    others = _outsiders(tasks)
    if others:
        head += (
            f" (of the process, {plural(len(others), 'thread')} from before the schedule or from "
            "elsewhere: none moves, and what such a thread would do is not controlled)"
        )
    return "\n".join([head, *map(line_of, tasks)])


def of_livelock(tasks: Sequence[Task], steps: int, idle: int) -> str:
    """The text of the error when threads go on for ever."""
    head = f"livelock: {steps} steps, the last {idle} of them without any device work"
    return "\n".join([head, *map(line_of, tasks)])


def of_uncontrolled_wait(tasks: Sequence[Task], stuck: Task) -> str:
    """The text of the error when one waits for what the schedule does not know of."""
    others = [task for task in tasks if task is not stuck]
    head = (
        f"{stuck!r} waits for something that the schedule does not know of, and keeps the others "
        "from going on: a lock or a queue.SimpleQueue from before the schedule (make it within), "
        "or another process (DataLoader: num_workers=0), which no schedule controls: a test of "
        'such leaves them out by @pytest.mark.without("--schedules", reason=...). It waits at '
        f"{place_of(stuck)}"
    )
    return "\n".join([head, *map(line_of, others)])


def line_of(task: Task) -> str:
    """One task: its number and name, what it waits for, and where."""
    words = _WORDS.get(task.what)
    if task.what.startswith("join "):
        words = f"waits for the end of thread {task.what[5:]}"
    if words is None:
        words = f"waits in {task.what}" if task.until else f"is about to run {task.what}"
    if task.until is None and task.what in ("lock", "queue.get"):
        words = "can go on"
    holder = getattr(task.on, "held_by", None)
    if holder is not None and task.until is not None:
        words += f" that {holder!r} holds"
    if task.deadline is not None:
        words += f", until {task.deadline:.6f} s"
    return f"  {task!r} {words}, at {place_of(task)}"


def place_of(task: Task) -> str:
    """file:line and the text of the line of a task, in the program."""
    place = current_frames().get(task.ident)
    while place is not None and _is_library(place):
        place = place.f_back
    if place is None:
        return "its beginning"
    return _line_of_frame(place)


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name in _LIBRARY or name.startswith(_HERE)


def _outsiders(tasks: Sequence[Task]) -> dict[int, Any]:
    """The frames of threads that are not of the schedule."""
    ours = {task.ident for task in tasks}
    return {
        ident: frame
        for ident, frame in current_frames().items()
        if ident not in ours and ident not in _watchdogs
    }


def _positions_outside() -> dict[int, tuple[tuple[CodeType, Any], ...]]:
    """Where each thread outside the schedule is: the code of all its frames, and where in it.

    One that waits again in the schedule comes through what replaces Python's locks, and is where it
    was all the same: simgpu's frames are left out. Nor does the instruction count, but its source:
    a loop is compiled with several instructions for one condition.
    """
    return {
        ident: tuple(_steps_of(frame))
        for ident, frame in current_frames().items()
        if ident not in _tasks and ident not in _watchdogs
    }


def _steps_of(frame: FrameType | None) -> Iterator[tuple[CodeType, Any]]:
    while frame is not None:
        if not is_own(module_of(frame)):
            columns = getattr(frame.f_code, "co_positions", None)  # since Python 3.11
            at = columns and next(itertools.islice(columns(), frame.f_lasti // 2, None), None)
            yield frame.f_code, at or frame.f_lineno
        frame = frame.f_back


def of_held_turn(tasks: Sequence[Task], running: Task, seconds: float, resting: bool) -> str:
    """What the watchdog of ranks prints where the same one has had the turn for so long."""
    others = [task for task in tasks if task.number and (resting or task is not running)]
    if resting:
        head = (
            f"simgpu.ranks: no rank has gone on for {seconds:.0f} s. They sleep, or wait for each "
            "other, or for what comes from outside, as from another process:"
        )
    else:
        head = (
            f"simgpu.ranks: {running.name} has had the turn for {seconds:.0f} s, at "
            f"{_places_of(running)}. It computes, or waits in a way that simgpu does not know."
        )
        if others:
            head += (
                " The others go on where it waits for them, sleeps (in a loop: time.sleep(0)), or "
                "waits for a lock, condition, queue, thread, child process or socket of Python:"
            )
    return "\n".join([head, *map(line_of, others)])


def _places_of(task: Task) -> str:
    """The line of the program where a task is, and the innermost one where that is another."""
    innermost = frame = current_frames().get(task.ident)
    while frame is not None and not is_of_program(frame.f_code.co_filename):
        frame = frame.f_back
    if innermost is None:
        return "its beginning"
    found = dict.fromkeys(map(_line_of_frame, filter(None, (frame, innermost))))
    return " in ".join(found)


def _line_of_frame(frame: FrameType) -> str:
    name, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(name, line).strip()
    return f"{name}:{line}: {text}" if text else f"{name}:{line}"


def others_make_progress(tasks: Sequence[Task]) -> bool:
    """Whether a thread from elsewhere moves, and so may yet enable one of ours.

    True as well when one of ours can go on by now.
    """
    end = _host_time() + _LONGEST
    before = _positions(tasks)
    still = 0
    while before and still < _CHECKS and _host_time() < end:
        _sleep_on_host(_CHECK_EVERY)
        if any(task.until is None or task.until() for task in tasks):
            return True
        now = _positions(tasks)
        still = still + 1 if now == before else 0
        before = now
    return False


def _positions(tasks: Sequence[Task]) -> dict[int, tuple[int, int]]:
    return {ident: (id(f), f.f_lasti) for ident, f in _outsiders(tasks).items()}


# Who goes on, where several threads can: the order by default, deviations from it, chance.
#
# A strategy puts those who can go on into an order, by one of five rules (`RULES`), and picks one
# by its rank there. Rank 0 is what the rule itself would do, so the ranks that are not 0 are the
# deviations from it, and these few numbers describe a schedule (`tokens`).

# Of the task that runs, those that can go on, those that a time-out can come for, and the step.
Order = Callable[[Task, list[Task], list[Task], int], list[Task]]


def _by_deadline(tasks: list[Task]) -> list[Task]:
    return sorted(tasks, key=lambda task: (task.deadline or 0.0, task.number))


def _first(me: Task, ready: list[Task], expiring: list[Task], step: int) -> list[Task]:
    """Who runs goes on until it waits; then the one that began first; a time-out comes last."""
    if me in ready:
        ready.remove(me)
        ready.insert(len(ready) if me.yielding else 0, me)
    return ready + _by_deadline(expiring) if expiring else ready


def _last(me: Task, ready: list[Task], expiring: list[Task], step: int) -> list[Task]:
    """Who began last goes on; a time-out comes last."""
    if me.yielding and me in ready:
        ready.remove(me)
        ready.insert(0, me)
    return ready[::-1] + _by_deadline(expiring)


def _hasty(rule: Order) -> Order:
    """As this rule, but a time-out comes as soon as it can."""

    def order(me: Task, ready: list[Task], expiring: list[Task], step: int) -> list[Task]:
        due = [task for task in _by_deadline(expiring) if task.hasty_after <= step]
        rest = [task for task in expiring if task not in due]
        return due + rule(me, ready, rest, step)

    return order


def _turns(me: Task, ready: list[Task], expiring: list[Task], step: int) -> list[Task]:
    """All take turns at each point; a time-out is a turn too, and comes rarer each time."""
    due = [task for task in expiring if task.hasty_after <= step]
    rest = _by_deadline([task for task in expiring if task not in due])
    able = sorted(ready + due, key=lambda task: task.number)
    after = [task for task in able if task.number > me.number]
    return after + [task for task in able if task.number <= me.number] + rest


# By the letter that a token has for it; the first is the default.
RULES: dict[str, Order] = {
    "f": _first,
    "h": _hasty(_first),
    "t": _turns,
    "l": _last,
    "i": _hasty(_last),
}
DEFAULT_RULE = "f"
SEEDS = 2**64  # so many there are, so that each has room in a token
_DEEPEST = 100


class Strategy:
    """One rule, and at each choice the rank in its order that goes on: 0, unless overridden.

    Attributes:
        recipe: the letter of a strategy that chance decides, and the numbers that it is made of.
    """

    recipe: tuple[str, tuple[int, ...]] | None = None

    def __init__(self, rule: str = DEFAULT_RULE) -> None:
        self.rule = rule
        self.order = RULES[rule]

    def began(self, task: Task) -> None:
        """A thread has been started."""

    def rank(self, options: Sequence[Task], me: Task, number: int) -> int:
        """Which of `options` goes on; `me` has run so far.

        `number` is how many choices there were before.
        """
        return 0

    def chose(self, trace: Sequence[Choice]) -> None:
        """The last entry of `trace` was chosen. May raise, and then the schedule ends."""

    def ended(self, trace: Sequence[Choice]) -> None:
        """The block has ended without an error. May raise."""


class Deviations(Strategy):
    """The rule, but for some choices: by their number in the schedule, another rank than 0."""

    def __init__(self, ranks: Mapping[int, int] | None = None, rule: str = DEFAULT_RULE) -> None:
        super().__init__(rule)
        self.ranks = dict(ranks or {})

    def rank(self, options: Sequence[Task], me: Task, number: int) -> int:
        return min(self.ranks.get(number, 0), len(options) - 1)


class Nth(Strategy):
    """The n-th deviation from the rule that there is along the way; 0 is none.

    Attributes:
        left: how many more there would have had to be; 0 once it has come to pass.
    """

    def __init__(self, n: int, rule: str = DEFAULT_RULE) -> None:
        super().__init__(rule)
        self.left = n

    def rank(self, options: Sequence[Task], me: Task, number: int) -> int:
        others = len(options) - 1
        if not self.left:
            return 0
        if self.left > others:
            self.left -= others
            return 0
        rank, self.left = self.left, 0
        return rank


class Digits(Strategy):
    """The ranks are the digits of one number, the lowest first: of as many kinds as can go on."""

    def __init__(self, number: int, rule: str = DEFAULT_RULE) -> None:
        super().__init__(rule)
        self._rest = number

    def rank(self, options: Sequence[Task], me: Task, number: int) -> int:
        self._rest, rank = divmod(self._rest, len(options))
        return rank


class Random(Strategy):
    """Any of them, each as likely as the others."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.recipe = "r", (seed,)
        self._random = random.Random(seed)

    def rank(self, options: Sequence[Task], me: Task, number: int) -> int:
        return self._random.randrange(len(options))


class PCT(Strategy):
    """Priorities by chance, and `depth - 1` moments at which the one that runs falls behind all.

    As in Burckhardt et al., A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs
    (2010); `length` is about how many choices a schedule of the program has.
    """

    def __init__(self, seed: int = 0, depth: int = 3, length: int = 200) -> None:
        super().__init__()
        if not 1 <= depth <= _DEEPEST:
            raise ValueError(f"depth={depth}: from 1 to {_DEEPEST}")
        self.recipe = "p", (seed, depth, length)
        self._random = random.Random(seed)
        moments = [self._random.randrange(max(length, 1)) for _ in range(depth - 1)]
        self._falls = {moment: -1.0 - i for i, moment in enumerate(moments)}
        self._behind = -float(depth)

    def began(self, task: Task) -> None:
        task.priority = self._random.random()

    def rank(self, options: Sequence[Task], me: Task, number: int) -> int:
        me.priority = self._falls.get(number, me.priority)
        if me.yielding or me.run_length + 1 >= 500:  # or a loop that waits would never end
            self._behind -= 1.0
            me.priority = self._behind
        best = max(options, key=lambda task: task.priority)
        if best.until is not None and best.deadline is not None and not best.until():
            self._behind -= 1.0  # a time-out that came: the next one is not to come at once
            best.priority = self._behind
        return options.index(best)


def check_seed(seed: Any) -> None:
    """ValueError for what is no seed of a schedule."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise ValueError(f"seed={seed!r}: a number from 0 to {SEEDS - 1} is expected")


def seeded(name: str, seed: Any) -> Strategy:
    """The strategy that `simgpu.schedule(seed=..., strategy=...)` names; ValueError if none."""
    check_seed(seed)
    kinds: dict[str, Callable[[int], Strategy]] = {"deviate": Nth, "random": Random, "pct": PCT}
    if name not in kinds:
        raise ValueError(f"strategy={name!r}: one of {', '.join(kinds)} is expected")
    return kinds[name](seed)


# The watchdog: detects that the running thread waits for something outside the schedule.
#
# Most likely that is a lock from before the schedule, held by a thread that waits for its turn:
# both would wait for ever. The schedule ends with an error.
#
# A scheduler of real time has no such error, since what it does not know of may come to an end by
# itself. There the watchdog prints which task has run for long, and at which line.

EVERY = 0.25  # real seconds
LOOKS = 4  # times in a row that nothing happens
LONG = 20.0  # real seconds for which a task of real time may run without a word


def _cpu_seconds(task: Task) -> float:
    """What the thread of a task has computed so far; where that is not known, the time."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return _host_time()
    try:
        return time.clock_gettime(clock_of(task.ident))
    except OSError:  # it has ended
        return _host_time()


def _watch(look: Callable[[Any, Any], None], scheduler: Any, over: Any) -> None:
    """The code of a watchdog's thread."""
    try:
        look(scheduler, over)
    finally:
        _watchdogs.discard(_thread.get_ident())


def _look_after(scheduler: Any, over: Any) -> None:
    last, still = None, 0
    while not over.acquire(timeout=EVERY):
        running = scheduler.running_task
        now = (running, scheduler.steps, round(_cpu_seconds(running), 3))
        still = still + 1 if now == last else 0
        last = now
        if still >= LOOKS and any(_could_go_on(task, running) for task in scheduler.alive()):
            text = of_uncontrolled_wait(scheduler.alive(), running)
            scheduler.give_up(running, UncontrolledWaitError(text))
            return


def _print_held_turns(scheduler: Any, over: Any) -> None:
    steps, since, limit = -1, _host_time(), LONG
    while not over.acquire(timeout=min(EVERY, LONG)):
        moved = scheduler.steps != steps
        if moved and not scheduler.resting:
            steps, since, limit = scheduler.steps, _host_time(), LONG
        elif moved:
            steps = scheduler.steps
        held = _host_time() - since
        if held >= limit:
            limit *= 2  # the next time after as long again
            text = of_held_turn(scheduler.alive(), scheduler.running_task, held, scheduler.resting)
            print(text, file=sys.stderr, flush=True)


def _could_go_on(task: Task, running: Task) -> bool:
    waits = task.until is not None and task.deadline is None and not task.until()
    return task is not running and not waits


@contextmanager
def watched(scheduler: Any) -> Iterator[None]:
    """Look after the schedule within the block."""
    over = _new_lock()
    over.acquire()
    # None of the threads that Python lists: a program that counts them finds no more than before.
    look = _print_held_turns if scheduler.real_time else _look_after
    _watchdogs.add(_start_raw_thread(_watch, (look, scheduler, over)))
    try:
        yield
    finally:
        over.release()


_current: Scheduler | None = None
_start_thread = threading.Thread.start


def _forget_schedule() -> None:
    """In a forked child, which has one thread, and no schedule."""
    global _current
    _current = None
    _watchdogs.clear()
    _tasks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_schedule)


def current() -> Scheduler | None:
    """The scheduler of the schedule that is in force, or None."""
    return _current


# Which thread of a schedule runs: each waits for a lock of its own, and the one that runs releases
# the lock of the next.
#
# A task that comes to a point asks the strategy who goes on, resumes that task and waits to run
# again. A task that waits has a predicate, so no task is woken: it can be chosen when the predicate
# is true, or, if it waits with a time-out, at any moment, which then is the moment of the time-out.

TICK = 1e-6  # seconds that each step takes, so that loops which look at the clock come to an end
QUANTUM = 1000  # steps after which others who can go on have their turn
TURNS = 5 * QUANTUM  # steps of one thread, or without device work, after which a time-out comes
PATIENT = 10.0  # seconds from which a time-out is for emergencies: it comes if no thread can go on
MAX_IDLE = 100_000  # steps without device work, or a thread that begins or ends: a livelock
MAX_STEPS = 10_000_000
PATIENCE = 5.0  # real seconds for a thread to end
_STUBBORN = 100  # times that a thread may catch Ended and go on
_LOOK_EVERY = 0.2  # real seconds
_REST = 0.002  # real seconds between looks at what may come from outside
_LOOKS = 10  # times that nothing is there that may help: a thread that begins is not seen at once
join_thread = threading.Thread.join
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
        self._positions_before = _positions_outside() if real_time else {}
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
        while others_make_progress(self._alive) or (
            self.when_stuck is not None and self.when_stuck()
        ):
            ready, expiring = self._able(me)
            if ready or expiring:
                return ready, expiring
        raise DeadlockError(of_deadlock(self._alive))

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
            self._positions_before.get(ident) != at for ident, at in _positions_outside().items()
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
            raise LivelockError(of_livelock(self._alive, self.steps, idle))

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
            if thread is not me.thread:
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
        """Raise Ended in a thread that the schedule is over for."""
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
            self._finish(task)

    def _finish(self, task: Task) -> None:
        task.done = True
        task.what, task.until, task.deadline = "end", None, None
        self._alive.remove(task)
        self._leaving = task.thread
        task.release()
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
        first = Task(self, 0, threading.current_thread().name)
        first.thread = threading.current_thread()
        self.tasks.append(first)
        self._alive.append(first)
        self.running_task = first
        self.strategy.began(first)
        register_task(first)
        _current = self
        try:
            try:
                with interrupts_wait(lambda: first.waits_to_run, self.interrupt), watched(self):
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
                with no_words_of_ended():
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
                thread = task.thread
                task.until = None
                task.resume()
                first.may_run.acquire(timeout=PATIENCE)
                if thread is not None and task.done:
                    with outside(first):
                        join_thread(thread, PATIENCE)
        self._leaving = None
