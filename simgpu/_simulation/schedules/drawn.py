"""A schedule that somebody draws choice by choice: hypothesis, which then shrinks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simgpu._simulation.schedules.strategies import DEFAULT_RULE, Strategy
from simgpu._simulation.schedules.tasks import Task
from simgpu._simulation.schedules.tokens import Room


class Drawn(Strategy):
    """Whatever `draw(n)` returns: one of 0 to n - 1, where 0 is the simplest.

    As many as a token has room for: all of the first few hundred choices, or a few of all.
    """

    def __init__(self, draw: Callable[[int], int], rule: str = DEFAULT_RULE) -> None:
        super().__init__(rule)
        self._draw, self._room = draw, Room()

    def rank(self, options: Sequence[Task], me: Task, number: int) -> int:
        rank = self._draw(len(options)) if self._room.has(number, len(options)) else 0
        self._room.take(number, len(options), rank)
        return rank
