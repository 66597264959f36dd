"""Memory that Ctrl-C interrupts: it is found by any of its addresses, and resized or as before."""

import contextlib
import copy
from typing import NamedTuple

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from simgpu._core.by_address import ByAddress
from tests.support.interrupts import Interrupt, Interrupter, LoopInterrupter

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


SIZES = (8, 64, 4096)


def check(storage, x, sizes):
    """One of the two sizes, and its first bytes are those that were written."""
    nbytes = storage.nbytes()
    assert nbytes in sizes
    assert storage.device == x.device
    assert x.data_ptr() == storage.data_ptr()
    assert torch.simgpu.memory_stats(0)["requested_bytes.all.current"] >= nbytes
    assert torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)[:8].tolist() == [7] * 8


def interrupted(storage, size, at):
    try:
        with LoopInterrupter(at):
            storage.resize_(size)
    except Interrupt:
        return True
    return False


@given(sizes=st.permutations(SIZES))
def test_resize_is_done_or_undone_after_an_interrupt(simulated, sizes):
    """At each moment at which Python calls handlers."""
    at = 1
    while at:
        x = torch.full((8,), 7, dtype=torch.uint8, device=simulated[0])
        storage = x.untyped_storage()
        for size in sizes:
            storage.resize_(max(SIZES))
            storage.resize_(min(SIZES))
            was_interrupted = interrupted(storage, size, at)
            check(storage, x, (min(SIZES), size))
        at = at + 1 if was_interrupted else 0
