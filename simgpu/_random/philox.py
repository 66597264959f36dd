"""Philox4x32-10, the function that turns counters into random bits on a GPU, and its arithmetic.

It maps a counter of four 32-bit words and a key of two to four random words (Salmon and others,
"Parallel Random Numbers: As Easy as 1, 2, 3", 2011). cuRAND gives every thread of a kernel counters
of its own: the key is the seed, the lower half of the counter says how far the generator is, the
upper half is the thread. So `words_of(seed, place, 0, 100)` is what the first hundred
threads of a kernel draw at one place of the stream.

All threads are computed at once by NumPy, while other Python threads run. A chunk of
them stays in the processor's cache; callers with more threads go chunk by chunk.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
ROUNDS = 10
CHUNK = 8192  # threads; their words and products take 400 KB

_LOW = 0xFFFF_FFFF
_FIRST, _SECOND = (np.uint64(multiplier) for multiplier in MULTIPLIERS)

Array = npt.NDArray[Any]
Words32 = npt.NDArray[np.uint32]
Words64 = npt.NDArray[np.uint64]


class Words(NamedTuple):
    """The four words of every thread; memory that the next call in this Python thread reuses.

    Where fewer than four were asked for, the others are undefined.
    """

    x: Words32
    y: Words32
    z: Words32
    w: Words32


class _Products:
    """Room for the 64-bit products of `size` threads, and views of their halves."""

    def __init__(self, size: int) -> None:
        self.whole: Words64 = np.empty(size, np.uint64)
        halves = self.whole.view(np.uint32).reshape(size, 2)
        self.low: Words32 = halves[:, 0]
        self.high: Words32 = halves[:, 1]


class _Room:
    """Memory for the rounds over `size` threads, to be used again by the next call."""

    def __init__(self, size: int) -> None:
        # Two sets: the products of this round, and of the one before.
        self.products = [[_Products(size) for _ in range(2)] for _ in range(2)]
        self.c0: Words32 = np.empty(size, np.uint32)
        self.c2: Words32 = np.empty(size, np.uint32)
        # Of the numbers of threads, which nearly always begin at 0 or a multiple of `CHUNK`.
        self._thread = _Products(size)
        self._first = -1

    def products_of_threads(self, first: int) -> _Products:
        """The second multiplier times each number of a thread from `first` on."""
        if first != self._first:
            self._first = -1  # until it is done: Ctrl-C may come in between
            self.c2[:] = np.arange(first, first + len(self.c2), dtype=np.uint32)
            np.multiply(self.c2, _SECOND, out=self._thread.whole, dtype=np.uint64)
            self._first = first
        return self._thread


class _Rooms(threading.local):
    """The rooms of this Python thread, by their size: those that it used lately."""

    def __init__(self) -> None:
        self.of = functools.lru_cache(maxsize=8)(_Room)


_rooms = _Rooms()


def keys_of(seed: int, rounds: int) -> list[tuple[int, int]]:
    """The two words of the key in each round."""
    low, high = seed & _LOW, seed >> 32 & _LOW
    return [
        (low + KEY_STEPS[0] * number & _LOW, high + KEY_STEPS[1] * number & _LOW)
        for number in range(rounds)
    ]


def words_of(
    seed: int,
    place: int,
    first: int,
    count: int,
    lanes: int = 4,
    *,
    places: int = 1,
    step: int = 1,
    rounds: int = ROUNDS,
) -> Words:
    """What threads `first` to `first + count - 1` draw at one place of the stream, or at several.

    Args:
        seed: the key, 64 bits.
        place: the lower half of the counter, 64 bits: the generator's offset / 4.
        first: the number of the first thread; the upper half of the counter. All of these threads
            have the same upper 32 bits.
        lanes: how many of the four words are needed.
        places: how many places, each `step` behind the one before, and all with the same upper 32
            bits. The words of all threads at the first place come first.
        rounds: at least four; fewer than ten mix less.
    """
    threads = room = _rooms.of(count)
    # What depends only on the place is a number, or a column of numbers.
    by_place: Any = place & _LOW
    if places > 1:
        room = _rooms.of(places * count)
        column = np.arange(places, dtype=np.uint64) * np.uint64(step) + np.uint64(by_place)
        by_place = column[:, None]
    before, now = threads.products[0], room.products[1]
    both = [room.c0, room.c2, now[0].high, now[1].high]
    if places > 1:
        both = [words.reshape(places, count) for words in both]
    c0, c2, first_high, second_high = both
    keys = keys_of(seed, rounds)
    # Two rounds go by before a word depends on both place and thread.
    by_place = by_place * MULTIPLIERS[0]
    thread = threads.products_of_threads(first & _LOW)
    np.bitwise_xor(thread.high, np.uint32(place >> 32 & _LOW ^ keys[0][0]), out=threads.c0)
    np.multiply(threads.c0, _FIRST, out=before[0].whole, dtype=np.uint64)
    product = (by_place >> 32 ^ (first >> 32 & _LOW ^ keys[0][1])) * MULTIPLIERS[1]
    np.bitwise_xor(thread.low, np.uint32(product >> 32 ^ keys[1][0]), out=c0)
    np.bitwise_xor(before[0].high, np.uint32(by_place & _LOW ^ keys[1][1]), out=c2)

    np.multiply(room.c0, _FIRST, out=now[0].whole, dtype=np.uint64)
    np.multiply(room.c2, _SECOND, out=now[1].whole, dtype=np.uint64)
    np.bitwise_xor(second_high, np.uint32(product & _LOW ^ keys[2][0]), out=c0)
    _mix(first_high, before[0].low, keys[2][1], c2)
    return _later_rounds(room, keys, lanes)


def _later_rounds(room: _Room, keys: list[tuple[int, int]], lanes: int) -> Words:
    """The rounds after the third, whose products are the second ones of the room.

    The first and third word of the counter are in `c0` and `c2`; the second and fourth are the
    lower halves of the products of the round before.
    """
    c0, c2 = room.c0, room.c2
    now, before = room.products
    last = len(keys) - 1
    for number in range(3, len(keys)):
        k0, k1 = keys[number]
        # The last round's first product is in the third and fourth word only, and the first
        # word of the round before is only in that product.
        all_words = lanes > 2 or number < last
        if all_words:
            np.multiply(c0, _FIRST, out=now[0].whole, dtype=np.uint64)
        np.multiply(c2, _SECOND, out=now[1].whole, dtype=np.uint64)
        if lanes > 2 or number != last - 1:
            _mix(now[1].high, before[1].low, k0, c0)
        if all_words:
            _mix(now[0].high, before[0].low, k1, c2)
        now, before = before, now
    return Words(c0, before[1].low, c2, before[0].low)


def _mix(high: Words32, low: Words32, key: int, out: Words32) -> None:
    np.bitwise_xor(high, low, out=out)
    np.bitwise_xor(out, np.uint32(key), out=out)


# Arithmetic as a GPU does it, element by element: random words as numbers, fused multiply-add.
#
# The uniform numbers are bit for bit cuRAND's (curand_uniform.h): both of their steps round once,
# and the first is exact. A product and a sum are one instruction of a GPU, which rounds once; NumPy
# has no such function, so it is put together here of steps that lose nothing.

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_SPLIT = 2.0**27 + 1  # cuts a double into two halves of which products are exact
_SPLITTABLE = 2.0**960


def unit_float(words: Words32, out: Floats | None = None) -> Floats:
    """Numbers in (0, 1] of one word each."""
    drawn = np.empty(words.shape, np.float32) if out is None else out
    drawn[...] = words
    np.multiply(drawn, np.float32(2.0**-32), out=drawn)
    np.add(drawn, np.float32(2.0**-33), out=drawn)
    return drawn


def bits_of_two(low: Words32, high: Words32) -> npt.NDArray[np.uint64]:
    """53 bits of two words."""
    bits = high.astype(np.uint64)
    np.left_shift(bits, np.uint64(21), out=bits)
    return np.bitwise_xor(bits, low, out=bits)


def unit_double(low: Words32, high: Words32, out: Doubles | None = None) -> Doubles:
    """Numbers in (0, 1] of two words each."""
    drawn = np.empty(low.shape, np.float64) if out is None else out
    drawn[...] = bits_of_two(low, high)
    np.multiply(drawn, 2.0**-53, out=drawn)
    np.add(drawn, 2.0**-54, out=drawn)
    return drawn


def multiply_add(values: Array, factor: float, summand: float) -> None:
    """`values * factor + summand` in place, rounded once as by a GPU's fused instruction."""
    if summand == 0:
        if factor != 1:
            np.multiply(values, values.dtype.type(factor), out=values)
    elif factor == 1:
        np.add(values, values.dtype.type(summand), out=values)
    elif values.dtype == np.float32:
        values[...] = _sum_to_odd(values.astype(np.float64) * float(factor), float(summand))
    elif max(abs(factor), abs(summand)) < _SPLITTABLE:
        _multiply_add_doubles(values, float(factor), float(summand))
    else:
        values[...] = values * factor + summand


def _sum_to_odd(one: Doubles, other: Doubles | float) -> Doubles:
    """The sum with its last bit set wherever it is not exact.

    Rounding that to a shorter number gives what rounding the exact sum would.
    """
    total, lost = _two_sum(one, other)
    bits = total.view(np.int64)
    even = (lost != 0) & (bits & 1 == 0)
    bits += np.where(even, np.where((lost > 0) == (total > 0), 1, -1), 0)
    return total


def _two_sum(one: Doubles | float, other: Doubles | float) -> tuple[Doubles, Doubles]:
    """The rounded sum, and what the rounding lost (Knuth)."""
    total = np.asarray(one + other)
    part = total - one
    return total, np.asarray((one - (total - part)) + (other - part))


def _multiply_add_doubles(values: Doubles, factor: float, summand: float) -> None:
    """By Boldo and Melquiond: add the parts exactly, but for one sum that is rounded to odd."""
    product = values * factor
    high = values * _SPLIT
    high = high - (high - values)
    low = values - high
    factor_high = factor * _SPLIT
    factor_high = factor_high - (factor_high - factor)
    factor_low = factor - factor_high
    lost = low * factor_low - (
        ((product - high * factor_high) - low * factor_high) - high * factor_low
    )
    middle, smallest = _two_sum(lost, summand)
    largest, small = _two_sum(product, middle)
    np.add(largest, _sum_to_odd(smallest, small), out=values)


# Words computed ahead for small draws, many of which a program makes one after the other.
#
# The first rounds of Philox cost as much for 1 thread as for a thousand. A small draw takes one
# place of the stream and a few threads, and the next draw of that size comes a few places later,
# the same number of places each time if the program is a loop. So after a few draws, words are
# computed for several of the coming places at once. Where the guess is wrong, only time is lost.

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
        drawn = words_of(seed, place, 0, self.width, self.lanes, places=self.count, step=self.step)
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

    def drawn(self, lanes: int, seed: int, place: int, threads: int) -> Array:
        """What each of at least `threads` threads draws at `place`; not to be written to.

        Four words (`lanes` is 4), or what `uniform_()` makes of the first one (1): a number in
        [0, 1), 0 where 1 is drawn.
        """
        with self._lock:
            rows = self._rows.get((lanes, threads))
            if rows is None:
                step = max(64, 1 << threads.bit_length() >> 3)  # sizes that are nearly alike share
                width = -(-threads // step) * step
                rows = self._rows.get((lanes, width)) or _Rows(width, lanes)
                self._rows[lanes, threads] = self._rows[lanes, width] = rows
            return rows.row(seed, place)
