"""`simgpu.schedule`, `simgpu.schedules`: run a program under one or many orders of its threads."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from simgpu._core import clock, hooks
from simgpu._core.hooks import Instrument, Launch
from simgpu._core.world import active_devices
from simgpu._explore.schedules import primitives
from simgpu._explore.schedules.primitives import ScheduleClock, schedule_existing_locks
from simgpu._explore.schedules.scheduler import MAX_STEPS, Scheduler, current
from simgpu._explore.schedules.strategies import (
    DEFAULT_RULE,
    Choice,
    Deviations,
    Strategy,
    check_seed,
    seeded,
)
from simgpu._explore.schedules.tasks import calling_task
from simgpu._explore.schedules.tokens import (
    MOST,
    Name,
    Replay,
    orders,
    single_deviations,
    spread,
    token_of,
)
from simgpu._explore.training_state import State, find_state, host_copy, no_garbage_collection, same
from simgpu._util.naming import counted
from simgpu._util.patching import Patches
from simgpu.errors import ScheduleError

# `simgpu.schedule`: a block whose threads run one at a time, in an order that a seed decides.


class Schedule(Instrument):
    """What happened in a schedule, in order; made by `schedule`.

    Attributes:
        launches: for each kernel and copy the number of its thread, its operator, device and
            stream, and the bytes that were taken on each device when it began.
        left_behind: the threads that had not ended with the block, and what each waited for.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.launches: list[tuple[Any, ...]] = []

    def before_launch(self, launch: Launch) -> None:
        me = calling_task()
        if me is None:
            return
        scheduler = me.scheduler
        scheduler.progress_at = scheduler.steps
        scheduler.point(launch.op)
        taken = [device.allocated for device in active_devices]
        device = launch.device.index
        self.launches.append((me.number, launch.op, device, launch.stream, *taken))

    @property
    def trace(self) -> list[Choice]:
        """Every moment in which several threads could go on, and which of them did."""
        return self.scheduler.trace

    @property
    def steps(self) -> int:
        """How many points its threads have passed."""
        return self.scheduler.steps

    @property
    def switches(self) -> int:
        """How often another thread went on than the one that ran."""
        return self.scheduler.switches

    @property
    def left_behind(self) -> list[str]:
        return self.scheduler.left_behind

    @property
    def token(self) -> str:
        """What `simgpu.schedule(replay=...)` takes to repeat the choices that were made so far.

        It has under 100 characters.
        """
        return token_of(self.scheduler.strategy, self.trace)

    def digest(self) -> str:
        """A hash of all choices, of the launches and of the memory taken at each of them."""
        return hashlib.sha256(repr((self.trace, self.launches)).encode()).hexdigest()


@contextmanager
def schedule(
    seed: int = 0,
    strategy: Name = "deviate",
    *,
    replay: str | None = None,
    max_steps: int = MAX_STEPS,
) -> Iterator[Schedule]:
    """Make the threads that are started in the block run one at a time, in a repeatable order.

    The schedule may switch threads at yield points: kernels and copies, uses of locks, queues,
    conditions, events, barriers and futures, the start and join of a thread, and sleeps. It has its
    own time: a wait with a timeout takes no real time, and the schedule chooses whether the timeout
    expires. The end of the block ends threads that still run.

    Args:
        seed: the number of the schedule. Equal seeds give the same order, the same memory in use at
            each launch, and the same results, if the program depends on nothing else that changes.
        strategy: "deviate" runs a thread until it waits (seed 0); seed k deviates from that in the
            k-th choice. "random" picks a random thread at each yield point. "pct" gives threads
            random priorities, and lowers two of them on the way.
        replay: the token of a schedule to repeat, in place of both.
        max_steps: the number of yield points after which it is a livelock.

    Yields a `Schedule`. The thread that entered the block gets the errors: DeadlockError when no
    thread can go on; LivelockError after `max_steps`, or 100,000 yield points without device work;
    ScheduleDivergedError if a replay meets other choices; ScheduleError if a schedule is active
    already.
    """
    if replay is not None:
        chosen: Strategy = Replay(replay)
    else:
        chosen = seeded(strategy, seed)
    with controlled(chosen, max_steps) as controls:
        yield controls


@contextmanager
def controlled(strategy: Strategy, max_steps: int = MAX_STEPS) -> Iterator[Schedule]:
    """`schedule` with any strategy."""
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"max_steps={max_steps!r}: a number from 1 on is expected")
    if current() is not None:
        raise ScheduleError("simgpu.schedule() is already active; schedules cannot be nested")
    scheduler = Scheduler(strategy, max_steps)
    controls = Schedule(scheduler)
    with ExitStack() as stack:
        stack.enter_context(no_garbage_collection())
        stack.enter_context(clock.use(ScheduleClock()))
        hooks.add(controls)
        stack.callback(hooks.remove, controls)
        patches = Patches()
        stack.callback(patches.undo)
        patches.apply(primitives.PATCHES)
        stack.enter_context(scheduler.running())  # the last one: threads end before all else does
        try:
            yield controls
        except Exception as error:
            note(error, f"simgpu.schedule(replay={controls.token!r}) repeats this schedule")
            raise


def note(error: BaseException, text: str) -> None:
    """Make the traceback of `error` end with this text (from Python 3.11 on), once."""
    add: Any = getattr(error, "add_note", None)
    noted = any("simgpu.schedule(" in former for former in getattr(error, "__notes__", ()))
    if add is not None and not noted:
        add(text)


_SHRINKING = 60  # runs that are spent on a shorter token


@dataclass
class ScheduleRun:
    """One schedule, and what the step did in it.

    Attributes:
        number: 0 for the first one.
        choices, switches: how often several threads could go on, and how often another one did.
        token: what `simgpu.schedule(replay=...)` takes to repeat it: under 100 characters.
        problem: what was wrong, in words; empty when all was well.
        error: the exception that came out of the step, if any.
    """

    number: int
    choices: int
    switches: int
    token: str
    problem: str = ""
    error: BaseException | None = field(default=None, repr=False)
    trace: Sequence[Choice] = field(default=(), repr=False)
    rule: str = field(default=DEFAULT_RULE, repr=False)


@dataclass
class ScheduleReport:
    """The schedules that were tried; `str(report)` is a table of those with problems."""

    runs: Sequence[ScheduleRun]

    @property
    def count(self) -> int:
        """How many schedules were tried."""
        return len(self.runs)

    @property
    def problems(self) -> list[str]:
        """One line for each schedule with a problem; empty when all is well."""
        return [
            f"schedule {run.number} ({run.token}): {run.problem}"
            for run in self.runs
            if run.problem
        ]

    @property
    def tokens(self) -> list[str]:
        """The tokens of the schedules with problems."""
        return [run.token for run in self.runs if run.problem]

    def __str__(self) -> str:
        orders_found = len({tuple(run.trace) for run in self.runs})
        most = max((run.switches for run in self.runs), default=0)
        lines = [
            *self.problems,
            f"{self.count} schedules tried, {orders_found} of them different, with up to {most} "
            f"switches; {len(self.problems)} with problems",
        ]
        return "\n".join(lines)


def schedules(
    step: Callable[[], Any],
    n: int = 100,
    *,
    strategy: Name = "deviate",
    seed: int = 0,
    state: Iterable[Any] | None = None,
    compare: bool = True,
) -> ScheduleReport:
    """Run `step` under `n` schedules, until it fails in one of them.

    A failure is an error of the step, a deadlock, a livelock, or results whose bits differ from
    those of the first schedule: the returned value and the changed state. The failed schedule is
    then reduced to the fewest deviations from the default order that still fail in the same way.

    Args:
        step: a function without arguments that starts threads.
        n: the most schedules to run.
        strategy: "deviate" tries five plain orders (each thread until it waits; the same with
            time-outs as soon as possible; all in turn; the last thread first, without and with
            time-outs), then each single deviation from the first two, then pairs. "random" and
            "pct" try what `simgpu.schedule` does for `seed`, `seed` + 1 and so on.
        state: what `step` changes, to be put back before each schedule, as for `simgpu.sweep`; by
            default what the function names.
        compare: whether results have to be equal.

    Returns a `ScheduleReport`. Raises ValueError for a wrong strategy, number or seed, and
    ScheduleError if a schedule is active already.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n={n!r}: a number from 1 on is expected")
    check_seed(seed)
    before = State(find_state(step) if state is None else state)
    with schedule_existing_locks(step):
        return _explored(step, n, strategy, seed, before, compare)


def _explored(
    step: Callable[[], Any], n: int, strategy: Name, seed: int, before: State, compare: bool
) -> ScheduleReport:
    results: list[Any] = []

    def run(number: int, how: Strategy) -> ScheduleRun:
        result, attempt = attempted(step, number, how)
        if compare and attempt.error is None:
            outcome = [host_copy(result), *before.outcome()]
            if not results:
                results.append(outcome)
            if not same(outcome, results[0]):
                attempt.problem = "other results than in the first schedule"
        del result
        before.restore()
        return attempt

    runs = list(counted(tried(run, n, strategy, seed), n, "schedule"))
    if runs[-1].problem:
        runs[-1] = shortened(run, runs[-1])
    return ScheduleReport(runs)


def attempted(
    step: Callable[[], Any],
    number: int,
    strategy: Strategy,
    failures: tuple[type[BaseException], ...] = (Exception,),
) -> tuple[Any, ScheduleRun]:
    """Run `step` in one schedule; a failure is kept, with the frames that it came through."""
    result: Any = None
    error: BaseException | None = None
    control: Schedule | None = None
    try:
        with controlled(strategy) as control:
            result = step()
    except failures as raised:
        if control is None:
            raise
        error = raised
    assert control is not None
    trace, switches, token = control.trace, control.switches, control.token
    text = f"{type(error).__name__}: {error}" if error is not None else ""
    run = ScheduleRun(number, len(trace), switches, token, text, error, trace, strategy.rule)
    return result, run


def tried(
    run: Callable[[int, Strategy], ScheduleRun], n: int, strategy: Name, seed: int
) -> Iterator[ScheduleRun]:
    """The runs of `n` schedules, up to the first that has a problem."""
    enumeration = orders(strategy, seed)
    following = next(enumeration)
    for number in itertools.count():
        done = run(number, following)
        yield done
        if done.problem or number + 1 >= n:
            return
        try:
            following = enumeration.send(done.trace)
        except StopIteration:
            return


def shortened(run: Callable[[int, Strategy], ScheduleRun], failed: ScheduleRun) -> ScheduleRun:
    """The failed run with the fewest deviations that still fail in the same way.

    What is left has a token of under 100 characters: as `failed` has, which may be that of a seed.
    """
    fewest = failed
    kept = deviations_of(failed)
    left, size = _SHRINKING, max(1, len(kept) // 2)
    while kept and left:
        shorter = False
        for start in range(0, len(kept), size):
            numbers = sorted(kept)[start : start + size]
            fewer = {number: rank for number, rank in kept.items() if number not in numbers}
            again = run(failed.number, Deviations(fewer, failed.rule))
            left -= 1
            if _fails_alike(again, failed):
                kept, shorter = deviations_of(again), True
                if len(again.token) <= MOST:
                    fewest = again
                break
            if not left:
                break
        if not shorter and size == 1:
            break
        size = max(1, min(size, len(kept)) // 2) if not shorter else min(size, max(1, len(kept)))
    if len(kept) > 1:
        return _with_one_deviation(run, failed, left) or fewest
    return fewest


def _with_one_deviation(
    run: Callable[[int, Strategy], ScheduleRun], failed: ScheduleRun, most: int
) -> ScheduleRun | None:
    """One that fails in the same way, tried where no smaller part of what was drawn does."""
    by_rule = run(failed.number, Deviations(rule=failed.rule))
    if _fails_alike(by_rule, failed):
        return by_rule
    for deviation in spread(single_deviations(by_rule.trace))[:most]:
        again = run(failed.number, Deviations(dict([deviation]), failed.rule))
        if _fails_alike(again, failed):
            return again
    return None


def deviations_of(run: ScheduleRun) -> dict[int, int]:
    """By the number of each choice that went by another rank than 0, this rank."""
    return {number: choice.rank for number, choice in enumerate(run.trace) if choice.rank}


def _fails_alike(one: ScheduleRun, other: ScheduleRun) -> bool:
    return bool(one.problem) and type(one.error) is type(other.error)
