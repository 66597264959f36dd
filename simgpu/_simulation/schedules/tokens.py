"""Tokens: a schedule as a text of under 100 characters, with enough to notice another one by.

After `S1` and a letter that says in which of three ways the choices are told there are, in base 64:
how many choices there were; what tells them; and one byte for each of some choices, spread evenly,
which is a checksum of all choices before. The three ways:

- a small letter of a rule (`RULES`): the ranks that are not 0, with the numbers of their choices;
- a capital letter of a rule: all ranks as one number, in whose digits they are (`Digits`);
- a letter of `RECIPES`: the seed of a strategy that makes the same choices again by chance. It is
  for programs with more of them than there is room for.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Iterator, Sequence

from simgpu._simulation.schedules.strategies import PCT, RULES, Deviations, Digits, Random, Strategy
from simgpu._simulation.schedules.tasks import Choice

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
