"""Tokens of schedules: the choices of one run as text, and strategies that repeat or draw them.

After `S1` and a letter for one of three ways to give the choices there are, in base 64: how many
choices there were; what gives them; and one byte for each of some choices, spread evenly,
which is a checksum of all choices before. The three ways:

- a small letter of a rule (`RULES`): the ranks that are not 0, with the numbers of their choices;
- a capital letter of a rule: all ranks as one number, in whose digits they are (`Digits`);
- a letter of `RECIPES`: the seed of a strategy that makes the same choices again by chance. It is
  for programs with more of them than there is room for.
"""

from __future__ import annotations

import base64
import itertools
import math
import random
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Literal, TypeVar

from simgpu._explore.schedules.strategies import (
    DEFAULT_RULE,
    PCT,
    RULES,
    Choice,
    Deviations,
    Digits,
    Random,
    Strategy,
)
from simgpu._explore.schedules.tasks import Task
from simgpu.errors import ScheduleDivergedError

PREFIX = "S1"
MOST = 99  # characters
_CHECKS = 16
# Bytes for the ranks, whatever else there is: of a schedule with up to 2**28 choices.
ROOM = (MOST - len(PREFIX) - 1) // 4 * 3 - (_CHECKS + 1) - 4

# The strategies that chance decides, with how many numbers they are made of.
RECIPES: dict[str, tuple[Callable[..., Strategy], int]] = {"r": (Random, 1), "p": (PCT, 3)}


def varint(number: int) -> bytes:
    """A number as bytes, of seven bits each."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _varints(data: bytes) -> Iterator[tuple[int, int]]:
    """The numbers, each with the place at which it ends."""
    number = shift = 0
    for at, byte in enumerate(data, 1):
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number, at
            number = shift = 0


def checks(count: int) -> list[int]:
    """After which choices there is a byte to compare: about 16 of them, and the last."""
    step = max(1, -(-count // _CHECKS))
    return [*range(step, count, step), count] if count else []


def checksum(choices: Sequence[Choice], start: int = 0) -> int:
    """A checksum of choices, to go on with from one slice to the next."""
    for choice in choices:
        start = zlib.crc32(repr(tuple(choice)).encode(), start)
    return start


class Room:
    """How much of a token its ranks take, as they come; under chance or by hypothesis, many do."""

    def __init__(self) -> None:
        self._last = 0
        self._bits = 0.0
        self._bytes = 1  # which say how many there are

    def has(self, number: int, options: int) -> bool:
        """Whether any of so many options can be taken at this choice."""
        if self._bits + math.log2(options) <= ROOM * 8 - 1:
            return True
        return self._bytes + self._needed(number, options - 1) <= ROOM

    def take(self, number: int, options: int, rank: int) -> None:
        """This one was."""
        self._bits += math.log2(options)
        if rank:
            self._bytes += self._needed(number, rank) + (self._bytes == 127)
            self._last = number

    def _needed(self, number: int, rank: int) -> int:
        return len(varint(number - self._last)) + len(varint(rank))


def token_of(strategy: Strategy, trace: Sequence[Choice]) -> str:
    """The token of these choices, which this strategy has made.

    The first of the three ways that is short enough: a replay by the first can say the most. Any
    strategy has one of under 100 characters, if it has a recipe or keeps to the `Room`.
    """
    count = varint(len(trace))
    crc = done = 0
    compared = bytearray()
    for at in checks(len(trace)):
        crc = checksum(trace[done:at], crc)
        done = at
        compared.append(crc & 255)

    def text(letter: str, body: bytes) -> str:
        data = base64.urlsafe_b64encode(count + body + compared)
        return f"{PREFIX}{letter}{data.decode().rstrip('=')}"

    token = text(strategy.rule, _sparse(trace))
    digits = _dense(trace) if len(token) > MOST else None
    if digits is not None:
        return text(strategy.rule.upper(), digits)
    if len(token) > MOST and strategy.recipe is not None:
        letter, numbers = strategy.recipe
        return text(letter, b"".join(map(varint, numbers)))
    return token


def _sparse(trace: Sequence[Choice]) -> bytes:
    ranks = [(number, choice.rank) for number, choice in enumerate(trace) if choice.rank]
    body = bytearray(varint(len(ranks)))
    last = 0
    for number, rank in ranks:
        body += varint(number - last) + varint(rank)
        last = number
    return bytes(body)


def _dense(trace: Sequence[Choice]) -> bytes | None:
    number, unit = 0, 1
    for choice in trace:
        number += choice.rank * unit
        if number >> 8 * ROOM:
            return None
        unit *= len(choice.options)
    return number.to_bytes((number.bit_length() + 7) // 8, "little")


def strategy_in(token: str) -> tuple[Strategy, int, dict[int, int]]:
    """What makes the choices of a token, their count, and a checksum's byte after some of them.

    Raises ValueError, LookupError or StopIteration for what is no token.
    """
    letter, text = token[len(PREFIX)], token[len(PREFIX) + 1 :]
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    numbers = _varints(data)
    count, at = next(numbers)
    places = checks(count)
    end = len(data) - len(places)
    strategy: Strategy
    if letter in RECIPES:
        kind, size = RECIPES[letter]
        read = [next(numbers) for _ in range(size)]
        strategy, at = kind(*(number for number, _ in read)), read[-1][1]
    elif letter in RULES:
        ranks, at = _read_ranks(numbers)
        strategy = Deviations(ranks, letter)
    else:
        strategy = Digits(int.from_bytes(data[at:end], "little"), letter.lower())
        at = end
    if not token.startswith(PREFIX) or at != end:
        raise ValueError(token)
    return strategy, count, dict(zip(places, data[end:], strict=True))


def _read_ranks(numbers: Iterator[tuple[int, int]]) -> tuple[dict[int, int], int]:
    """The ranks that are not 0, and the place at which they end."""
    pairs, end = next(numbers)
    ranks, number = {}, 0
    for _ in range(pairs):
        (gap, _), (rank, end) = next(numbers), next(numbers)
        number += gap
        ranks[number] = rank
    return ranks, end


# A schedule that hypothesis draws choice by choice, and then shrinks.


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


# Which schedules are tried, one after the other: what each of the three strategies enumerates.
#
# An enumeration is a generator: it yields a strategy, and is sent the choices that came of it.

Name = Literal["deviate", "random", "pct"]
Orders = Generator[Strategy, Sequence[Choice], None]
T = TypeVar("T")


def orders(strategy: Name, seed: int) -> Orders:
    """All schedules of a strategy: as many as are asked for, or as there are."""
    enumerations = {"deviate": _deviations, "random": _random, "pct": _pct}
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


# `simgpu.schedule(replay=TOKEN)`: the same choices again, and an error where others come up.

_WAY_OUT = (
    "Something decides that the schedule does not. Where the program has changed, its tokens are "
    "void: look for a new one by simgpu.schedules(fn) or pytest --schedules N. Otherwise take out "
    "what differs between two runs: sort what comes from a set, seed random numbers, and leave the "
    "host's time and other processes out of decisions"
)


class Replay(Strategy):
    """The choices of a token; raises ScheduleDivergedError where others come up."""

    def __init__(self, token: str) -> None:
        self.token = token
        try:
            if not isinstance(token, str):
                raise ValueError(token)
            self._strategy, self.count, self._checks = strategy_in(token)
        except (ValueError, LookupError, StopIteration):
            raise ValueError(
                f"replay={token!r} is no token of a schedule: it begins with {PREFIX}, and the "
                "failure that is to be repeated has printed it"
            ) from None
        super().__init__(self._strategy.rule)
        self.recipe = self._strategy.recipe
        self._ranks = self._strategy.ranks if isinstance(self._strategy, Deviations) else {}
        self._crc = self._done = 0

    def began(self, task: Task) -> None:
        self._strategy.began(task)

    def rank(self, options: Sequence[Task], me: Task, number: int) -> int:
        return self._strategy.rank(options, me, number)

    def chose(self, trace: Sequence[Choice]) -> None:
        number = len(trace) - 1
        choice = trace[-1]
        if number >= self.count:
            self._diverged(number, choice, f"the schedule had ended after {self.count} choices")
        if self._ranks.get(number, 0) >= len(choice.options):
            self._diverged(number, choice, f"choice {self._ranks[number]} of them was to be taken")
        if number + 1 in self._checks:
            self._crc = checksum(trace[self._done : number + 1], self._crc)
            if self._crc & 255 != self._checks[number + 1]:
                self._diverged(number, choice, "a choice since the last comparison was another")
            self._done = number + 1

    def _diverged(self, number: int, choice: Choice, why: str) -> None:
        options = ", ".join(map(str, choice.options))
        raise ScheduleDivergedError(
            f"the replay of {self.token} diverged between its choices {self._done} and {number}, "
            f"of {self.count}: {why}. Now thread {choice.task} was at {choice.what!r}, and "
            f"threads {options} could go on. {_WAY_OUT}"
        )

    def ended(self, trace: Sequence[Choice]) -> None:
        """The schedule has ended; raises if the token had more choices."""
        if len(trace) < self.count:
            raise ScheduleDivergedError(
                f"the replay of {self.token} ended after {len(trace)} choices, and the schedule "
                f"had {self.count}: it diverged after choice {self._done}. {_WAY_OUT}"
            )
