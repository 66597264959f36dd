"""How the benchmarks take time: steps in turns, best of several rounds, and a line through times.

Both sides of a ratio are timed in one process and in turns, so that a busy machine disturbs them
alike. The best round counts, for what others do can only add. Imports nothing but the standard
library.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Step = Callable[[], Any]


class Seconds(NamedTuple):
    """What one call takes: of the CPU, all threads of the process together, and of the clock."""

    cpu: float
    clock: float


def best(steps: dict[str, Step], number: int, rounds: int) -> dict[str, Seconds]:
    """Seconds per call of each step: the best of `rounds` rounds of `number` calls, in turns."""
    for step in steps.values():
        step()
        step()
    times = {name: Seconds(float("inf"), float("inf")) for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            taken = one_round(step, number)
            times[name] = Seconds(*map(min, times[name], taken))
    return times


def one_round(step: Step, number: int) -> Seconds:
    """Seconds per call in this round, without the garbage collector."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        cpu, clock = time.process_time(), time.perf_counter()
        for _ in range(number):
            step()
        clock = time.perf_counter() - clock
        return Seconds((time.process_time() - cpu) / number, clock / number)
    finally:
        if collecting:
            gc.enable()


class Line(NamedTuple):
    """A straight line through measured times."""

    base: float
    slope: float
    worst: float  # the largest distance of a time from the line, as a part of what the line says


def line_through(sizes: Sequence[float], times: Sequence[float]) -> Line:
    """The line that fits best by least squares of the relative distances.

    Relative, because sizes go over orders of magnitude: by plain least squares the largest size
    would decide by itself.
    """
    weights = [1 / seconds**2 for seconds in times]
    total = sum(weights)
    x_mean = sum(w * x for w, x in zip(weights, sizes, strict=True)) / total
    y_mean = sum(w * y for w, y in zip(weights, times, strict=True)) / total
    spread = sum(w * (x - x_mean) ** 2 for w, x in zip(weights, sizes, strict=True))
    slope = (
        sum(w * (x - x_mean) * (y - y_mean) for w, x, y in zip(weights, sizes, times, strict=True))
        / spread
    )
    base = y_mean - slope * x_mean
    worst = max(abs(y / (base + slope * x) - 1) for x, y in zip(sizes, times, strict=True))
    return Line(base, slope, worst)
