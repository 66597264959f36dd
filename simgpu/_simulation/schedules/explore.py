"""`simgpu.schedules`: run a step under many schedules, and look whether it is the same in all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from simgpu._simulation.schedules.block import Schedule, controlled
from simgpu._simulation.schedules.older_locks import adopted
from simgpu._simulation.schedules.orders import Name, orders, single_deviations, spread
from simgpu._simulation.schedules.strategies import DEFAULT_RULE, Deviations, Strategy, check_seed
from simgpu._simulation.schedules.tasks import Choice
from simgpu._simulation.schedules.tokens import MOST
from simgpu._simulation.state import State, find_state, host_copy, same

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
    """Run `step` under `n` schedules, until something goes wrong in one of them.

    Wrong is an error that comes out of it, be it the step's own, a deadlock or a livelock; and, if
    they are compared, other results than in the first schedule, to the bit: what the step returns,
    and the state that it changes. The schedule that failed is made as short as can be: its token
    has the fewest deviations from the order by default that still fail in the same way.

    Args:
        step: a function without arguments that starts threads, or calls what does.
        n: how many schedules; fewer where there are no more.
        strategy: "deviate" tries five plain orders (each thread until it waits; the same with
            time-outs as soon as possible; all in turn; the last thread first, without and with
            time-outs), then each single deviation from the first two, then pairs. "random" and
            "pct" try what `simgpu.schedule` does for `seed`, `seed` + 1 and so on.
        state: what `step` changes, to be put back before each schedule, as for `simgpu.sweep`; by
            default what the function names.
        compare: whether the results have to be equal.

    Returns a `ScheduleReport`. Raises ValueError for what is no strategy, number or seed, and what
    `simgpu.schedule` raises where a schedule is in force.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n={n!r}: a number from 1 on is expected")
    check_seed(seed)
    before = State(find_state(step) if state is None else state)
    with adopted(step):
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

    runs = list(tried(run, n, strategy, seed))
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
    return result, _as_run(number, control, error, strategy.rule)


def _as_run(number: int, control: Schedule, error: BaseException | None, rule: str) -> ScheduleRun:
    trace, token = control.trace, control.token
    text = f"{type(error).__name__}: {error}" if error is not None else ""
    return ScheduleRun(number, len(trace), control.switches, token, text, error, trace, rule)


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

    What is left has a token of under 100 characters: as `failed` has, which may be told by a seed.
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
