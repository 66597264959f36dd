"""Memory is found by any of its addresses, whatever Ctrl-C has interrupted before."""

import contextlib
import copy
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from simgpu._core.by_address import ByAddress
from tests.support.interrupts import Interrupt, Interrupter

LAST = 24
BEGINS = st.integers(0, 3) | st.integers(0, LAST)  # some more than once
# 0 is for no interrupt; the second of `remove` and the fourth of `put` leave an address as it is.
MOMENTS = st.sampled_from([0, 2, 4, 2, 4, 1, 3])


class Piece(NamedTuple):
    begin: int
    end: int


def pieces_between(pieces, begin, end):
    return sorted(piece for piece in pieces if piece.begin < end and begin < piece.end)


def check_spans(table, there, length):
    for address in range(LAST):
        span = address, address + length
        assert table.overlapping(*span) == pieces_between(there, *span)


def check_addresses(table, there, length):
    for address in range(LAST + 8):
        found = pieces_between(there, address, address + 1)
        assert table.at(address) == (found[0] if found else None)


@given(
    steps=st.lists(st.tuples(BEGINS, st.integers(1, 6), MOMENTS), max_size=12),
    length=st.integers(1, 8),
)
@example(steps=[(8, 1, 4), (5, 6, 0)], length=1)  # found behind what is left over
@example(steps=[(8, 1, 3), (8, 1, 0)], length=2)  # put in its place
def test_memory_is_found_by_any_of_its_addresses(steps, length):
    """Each step adds a piece, or takes out those in its place."""
    table, there = ByAddress(), set()
    for begin, size, at in steps:
        piece = Piece(begin, begin + size)
        others = pieces_between(there, *piece)
        with contextlib.suppress(Interrupt), Interrupter(at):
            for other in others:
                table.remove(other)
            if not others:
                table.put(piece)
        candidates = {*others, piece}  # of two that are equal, the one that may be there
        there = there - candidates | {
            each for each in candidates if table.begins_at(each.begin) is each
        }
        for check in (check_spans, check_addresses):
            check(copy.deepcopy(table), there, length)  # which takes out what an interrupt left
        assert bool(table) == bool(there)
        assert set(table) == there
    table.clear()
    assert not table
    assert table.overlapping(0, LAST) == []
