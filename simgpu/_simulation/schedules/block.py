"""`simgpu.schedule`: a block whose threads run one at a time, in an order that a seed decides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from simgpu._patches import Patches
from simgpu._runtime import clock, instruments
from simgpu._runtime.instruments import Instrument, Launch
from simgpu._runtime.world import active_devices
from simgpu._simulation.collector import no_garbage_collection
from simgpu._simulation.schedules import replaced
from simgpu._simulation.schedules.baton import MAX_STEPS
from simgpu._simulation.schedules.one_cpu import one_cpu
from simgpu._simulation.schedules.orders import Name
from simgpu._simulation.schedules.replays import Replay
from simgpu._simulation.schedules.scheduler import Scheduler, current
from simgpu._simulation.schedules.strategies import Strategy, check_seed, strategy_of
from simgpu._simulation.schedules.tasks import Choice, calling_task
from simgpu._simulation.schedules.threads import ScheduleClock
from simgpu._simulation.schedules.tokens import token_of
from simgpu.errors import ScheduleError


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
    """Let the threads that are started in the block run one at a time, in a repeatable order.

    Another thread may go on wherever one launches a kernel or a copy, touches a lock, a queue, a
    condition, an event, a barrier or a future, starts or joins a thread, or sleeps. Time is the
    schedule's own: a wait with a time-out takes none, and whether the time-out comes first is one
    of the choices. Threads that have not ended with the block are ended then.

    Args:
        seed: which schedule. Equal seeds give the same order of all of this, the same bytes taken
            at each launch, and so the same results, as long as the program itself does not look at
            anything else that changes.
        strategy: "deviate" runs a thread until it waits (seed 0), and seed k deviates from that in
            one choice, the k-th that there is along the way; "random" takes any thread each time;
            "pct" gives threads priorities by chance, and lowers two of them on the way.
        replay: the token of a schedule that is to be repeated, in place of both.
        max_steps: after so many points it is a livelock.

    Yields a `Schedule`. In the thread that entered the block, wherever it stands, are raised:
    DeadlockError when no thread can go on; LivelockError after `max_steps`, or 100,000 steps
    without device work; ScheduleDivergedError if a replay comes to other choices. ScheduleError if
    a schedule is in force already.
    """
    if replay is not None:
        chosen: Strategy = Replay(replay)
    else:
        chosen = seeded(strategy, seed)
    with controlled(chosen, max_steps) as controls:
        yield controls


def seeded(strategy: str, seed: int) -> Strategy:
    """The strategy of this name and seed; ValueError for what is neither."""
    check_seed(seed)
    return strategy_of(strategy, seed)


@contextmanager
def controlled(
    strategy: Strategy, max_steps: int = MAX_STEPS, *, launches: bool = True
) -> Iterator[Schedule]:
    """`schedule` with any strategy; without `launches`, these are no points."""
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"max_steps={max_steps!r}: a number from 1 on is expected")
    if current() is not None:
        raise ScheduleError("a schedule is in force already, and threads have one: leave its block")
    scheduler = Scheduler(strategy, max_steps)
    controls = Schedule(scheduler)
    with ExitStack() as stack:
        stack.enter_context(no_garbage_collection())
        stack.enter_context(clock.use(ScheduleClock()))
        if launches:
            instruments.add(controls)
            stack.callback(instruments.remove, controls)
        patches = Patches()
        stack.callback(patches.undo)
        patches.apply(replaced.PATCHES)
        stack.enter_context(one_cpu())
        stack.enter_context(scheduler.running())  # the last one: threads end before all else does
        try:
            yield controls
        except Exception as error:
            note(error, f"simgpu.schedule(replay={controls.token!r}) repeats this schedule")
            raise


def note(error: BaseException, text: str) -> None:
    """Let the traceback of `error` end with this text (from Python 3.11 on), once."""
    add: Any = getattr(error, "add_note", None)
    told = any("simgpu.schedule(" in former for former in getattr(error, "__notes__", ()))
    if add is not None and not told:
        add(text)
