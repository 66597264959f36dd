"""Tokens: a schedule as a short text, with enough to notice where a replay diverges from it.

A token holds the rule, the ranks that are not 0 with the numbers of their choices, how many choices
there were, and one byte for each of some choices, spread evenly: a checksum of all choices before.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence

from simgpu._simulation.schedules.strategies import Deviations
from simgpu._simulation.schedules.tasks import Choice
from simgpu.errors import ScheduleDivergedError

PREFIX = "S1"
MOST = 99  # characters
_CHECKS = 16
_ROOM = (MOST - len(PREFIX)) // 4 * 3  # bytes that fit, in base 64


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _varints(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0


def _checks(count: int) -> list[int]:
    """After which choices there is a byte to compare: about 16 of them, and the last."""
    step = max(1, -(-count // _CHECKS))
    return [*range(step, count, step), count] if count else []


def checksum(choices: Sequence[Choice], start: int = 0) -> int:
    """A checksum of choices, to go on with from one slice to the next."""
    for choice in choices:
        start = zlib.crc32(repr(tuple(choice)).encode(), start)
    return start


def token_of(rule: str, trace: Sequence[Choice]) -> str:
    """The token of these choices, which were made by this rule."""
    ranks = [(number, choice.rank) for number, choice in enumerate(trace) if choice.rank]
    body = bytearray(_varint(len(trace)) + _varint(len(ranks)))
    last = 0
    for number, rank in ranks:
        body += _varint(number - last) + _varint(rank)
        last = number
    crc = done = 0
    bytes_ = bytearray()
    for at in _checks(len(trace)):
        crc = checksum(trace[done:at], crc)
        done = at
        bytes_.append(crc & 255)
    packed = bytes(body)
    squeezed = zlib.compress(packed, 9)
    letter = rule
    if len(squeezed) + 1 < len(packed):
        letter, packed = letter.upper(), bytes([len(squeezed) & 255, len(squeezed) >> 8]) + squeezed
    text = base64.urlsafe_b64encode(packed + bytes_).decode().rstrip("=")
    return f"{PREFIX}{letter}{text}"


class Replay(Deviations):
    """The choices of a token; raises ScheduleDivergedError where others come up."""

    def __init__(self, token: str) -> None:
        self.token = token
        try:
            rule, self.count, ranks, self._bytes = _read(token)
            super().__init__(ranks, rule)
        except (ValueError, KeyError, IndexError, zlib.error, StopIteration):
            raise ValueError(
                f"replay={token!r} is no token of a schedule: it begins with {PREFIX}, and the "
                "failure that is to be repeated has printed it"
            ) from None
        self._checks = dict(zip(_checks(self.count), self._bytes, strict=True))
        self._crc = self._done = 0

    def chose(self, trace: Sequence[Choice]) -> None:
        number = len(trace) - 1
        choice = trace[-1]
        if number >= self.count:
            self._diverged(number, choice, f"the schedule had ended after {self.count} choices")
        if self.ranks.get(number, 0) >= len(choice.options):
            self._diverged(number, choice, f"choice {self.ranks[number]} of them was to be taken")
        if number + 1 in self._checks:
            self._crc = checksum(trace[self._done : number + 1], self._crc)
            if self._crc & 255 != self._checks[number + 1]:
                self._diverged(number, choice, "a choice since the last comparison was another")
            self._done = number + 1

    def _diverged(self, number: int, choice: Choice, why: str) -> None:
        options = ", ".join(map(str, choice.options))
        raise ScheduleDivergedError(
            f"the replay of {self.token} diverged between its choices {self._done} and {number}, "
            f"of {self.count}: {why}. Now thread {choice.task} stood at {choice.what!r}, and "
            f"threads {options} could go on. Something decides that the schedule does not: the "
            "program has changed, or looks at addresses (the order of a set), the host's time, "
            "other processes, unseeded random numbers"
        )

    def ended(self, trace: Sequence[Choice]) -> None:
        """The schedule has ended; raises if the token had more choices."""
        if len(trace) < self.count:
            raise ScheduleDivergedError(
                f"the replay of {self.token} ended after {len(trace)} choices, and the schedule "
                f"had {self.count}: it diverged after choice {self._done}"
            )


def _read(token: str) -> tuple[str, int, dict[int, int], bytes]:
    if not token.startswith(PREFIX):
        raise ValueError(token)
    letter, text = token[len(PREFIX)], token[len(PREFIX) + 1 :]
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if letter.isupper():
        length = data[0] | data[1] << 8
        head, rest = zlib.decompress(data[2 : 2 + length]), data[2 + length :]
        count, ranks = _ranks(head)[:2]
    else:
        count, ranks, used = _ranks(data)
        rest = data[used:]
    if len(rest) != len(_checks(count)):
        raise ValueError(token)
    return letter.lower(), count, ranks, rest


def _ranks(data: bytes) -> tuple[int, dict[int, int], int]:
    """How many choices, the ranks that are not 0, and how many bytes these took."""
    numbers = _varints(data)
    count, pairs = next(numbers), next(numbers)
    read = [count, pairs, *(next(numbers) for _ in range(2 * pairs))]
    ranks, at = {}, 0
    for gap, rank in zip(read[2::2], read[3::2], strict=True):
        at += gap
        ranks[at] = rank
    return count, ranks, sum(len(_varint(number)) for number in read)
