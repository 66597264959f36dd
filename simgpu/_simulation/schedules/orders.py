"""Which schedules are tried, one after the other: what each of the three strategies enumerates.

An enumeration is a generator: it yields a strategy, and is sent the choices that came of it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, TypeVar

from simgpu._simulation.schedules.strategies import PCT, RULES, Deviations, Random, Strategy
from simgpu._simulation.schedules.tasks import Choice

Name = Literal["deviate", "random", "pct"]
Orders = Generator[Strategy, Sequence[Choice], None]
T = TypeVar("T")


def orders(strategy: Name, seed: int) -> Orders:
    """All schedules of a strategy: as many as are asked for, or as there are."""
    enumerations: dict[str, Callable[[int], Orders]] = {
        "deviate": _deviations,
        "random": _random,
        "pct": _pct,
    }
    if strategy not in enumerations:
        raise ValueError(f"strategy={strategy!r}: one of {', '.join(enumerations)} is expected")
    return enumerations[strategy](seed)


def _random(seed: int) -> Orders:
    yield Deviations()  # what the others are compared with
    for number in itertools.count(seed):
        yield Random(number)


def _pct(seed: int) -> Orders:
    length = len((yield Deviations()))
    for number in itertools.count(seed):
        yield PCT(number, length=length)


def _deviations(seed: int) -> Orders:
    """The rules themselves, then one deviation from each of the first two, then two of them."""
    traces = {}
    for rule in RULES:
        traces[rule] = yield Deviations(rule=rule)
    bases = list(traces)[:2]
    if traces[bases[0]] == traces[bases[1]]:  # no time-outs: the second rule is the first one
        del bases[1]
    singles = [spread(single_deviations(traces[rule]), seed) for rule in bases]
    after: list[tuple[str, dict[int, int], list[tuple[int, int]]]] = []
    for rule, deviation in _in_turn(list(zip(bases, singles, strict=True))):
        ranks = dict([deviation])
        trace = yield Deviations(ranks, rule)
        after.append((rule, ranks, spread(single_deviations(trace, deviation[0] + 1), seed)))
    for number in range(max((len(rest) for *_, rest in after), default=0)):
        for rule, ranks, rest in after:
            if number < len(rest):
                yield Deviations({**ranks, **dict([rest[number]])}, rule)


def _in_turn(lists: Sequence[tuple[str, Sequence[T]]]) -> list[tuple[str, T]]:
    """One of each list, then the next of each."""
    columns = itertools.zip_longest(*([(name, item) for item in items] for name, items in lists))
    return [entry for column in columns for entry in column if entry is not None]


def single_deviations(trace: Sequence[Choice], start: int = 0) -> list[tuple[int, int]]:
    """Every deviation from a schedule: the number of the choice, and the rank that is taken."""
    return [
        (number, rank)
        for number in range(start, len(trace))
        for rank in range(1, len(trace[number].options))
    ]


def spread(items: list[Any], seed: int = 0) -> list[Any]:
    """The same items, so ordered that the first few are from all over the list.

    Seed 0 halves the list again and again; others shuffle it.
    """
    if seed:
        random.Random(seed).shuffle(items)
        return items
    bits = max(len(items) - 1, 1).bit_length()
    places = sorted(range(len(items)), key=lambda place: f"{place:0{bits}b}"[::-1])
    return [items[place] for place in places]
