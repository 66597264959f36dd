"""Who goes on, where several threads can: the order by default, deviations from it, chance.

A strategy puts those who can go on into an order, by one of five rules (`RULES`), and picks one
by its rank there. Rank 0 is what the rule itself would do, so the ranks that are not 0 are the
deviations from it, and these few numbers describe a schedule (`tokens`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from simgpu._explore.schedules.tasks import Task


class Choice(NamedTuple):
    """One moment in which several threads could go on."""

    task: int  # which one ran
    what: str  # its state
    options: tuple[int, ...]  # who could go on, in the order of the strategy
    rank: int  # which of these went on


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
