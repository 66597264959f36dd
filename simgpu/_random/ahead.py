"""Words computed ahead for small draws, many of which a program makes one after the other.

The first rounds of Philox cost as much for 1 thread as for a thousand. A small draw takes one place
of the stream and a few threads, and the next draw of that size comes a few places later, the same
number of places each time if the program is a loop. So after a few draws, words are computed for
several of the coming places at once. Where the guess is wrong, only time is lost.
"""

from __future__ import annotations

import math
import threading

import numpy as np

from simgpu._random import philox
from simgpu._random.arithmetic import Floats, unit_float
from simgpu._random.philox import Array, Words, Words32

MOST_THREADS = 2048
_BLOCKS = 16384  # words of how many threads and places are computed at once, at most
_GROWTH = 4


class _Rows:
    """The words of threads 0 to `width - 1` at some places, evenly apart."""

    def __init__(self, width: int, lanes: int) -> None:
        self.width, self.lanes = width, lanes
        self.seed = self.start = self.last = -1
        self.step = self.count = 0
        self.table: Array = np.empty((0, width))

    def row(self, seed: int, place: int) -> Array:
        """What is computed for `place`; computes it, and some of the next, if it is not there."""
        if seed == self.seed:
            row, rest = divmod(place - self.start, self.step)
            if not rest and 0 <= row < self.count:
                self.last = place
                return self.table[row]  # type: ignore[no-any-return]
        self._foresee(seed, place)
        self.seed = -1  # until it is done: Ctrl-C may come in between
        drawn = philox.words_of_places(seed, place, self.step, self.count, self.width, self.lanes)
        self.table = self._made_of(drawn)
        self.seed, self.start, self.last = seed, place, place
        return self.table[0]  # type: ignore[no-any-return]

    def _foresee(self, seed: int, place: int) -> None:
        """Choose which places to compute."""
        apart = place - self.last
        if seed == self.seed and 0 < apart <= 4 * _BLOCKS // self.width:
            # Draws of one size that are not evenly apart: places that fit them all.
            self.step = math.gcd(self.step, apart) if self.count > 1 else apart
            self.count = min(self.count * _GROWTH, _BLOCKS // self.width)
        else:
            self.step, self.count = 1, 1
        if (place >> 32) != (place + self.step * self.count) >> 32:
            self.count = 1

    def _made_of(self, drawn: Words) -> Array:
        """The table: for each place and thread, its words or what is made of them."""
        shape = self.count, self.width
        if self.lanes == 1:
            numbers = unit_float(drawn.x)
            numbers[numbers == 1] = 0
            return numbers.reshape(shape)
        table = np.empty((*shape, self.lanes), np.uint32)
        for lane in range(self.lanes):
            table[:, :, lane] = drawn[lane].reshape(shape)
        return table


class Ahead:
    """What one stream has computed ahead, by the number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By the number of lanes and the greatest number of threads.
        self._rows: dict[tuple[int, int], _Rows] = {}

    def drawn(self, seed: int, place: int, threads: int) -> Words32:
        """Four words for each of at least `threads` threads at `place`; not to be written to."""
        with self._lock:
            return self._of(4, threads).row(seed, place)

    def uniform(self, seed: int, place: int, threads: int) -> Floats:
        """What `uniform_()` makes of each thread's first word: in [0, 1), 0 where 1 is drawn."""
        with self._lock:
            rows = self._rows.get((1, threads)) or self._of(1, threads)
            return rows.row(seed, place)

    def _of(self, lanes: int, threads: int) -> _Rows:
        rows = self._rows.get((lanes, threads))
        if rows is None:
            step = max(64, 1 << threads.bit_length() >> 3)  # sizes that are nearly alike share
            width = -(-threads // step) * step
            rows = self._rows.get((lanes, width)) or _Rows(width, lanes)
            self._rows[lanes, threads] = self._rows[lanes, width] = rows
        return rows
