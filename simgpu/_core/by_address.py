"""`ByAddress`: pieces of memory, found by an address within them; no two overlap.

Ctrl-C between two lines here may leave an address without a piece, and never a piece without its
address: the next lookup of such an address removes it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class _Piece(Protocol):
    """Memory from `begin` to before `end`."""

    begin: int
    end: int


Piece = TypeVar("Piece", bound=_Piece)


class ByAddress(Generic[Piece]):
    """Pieces of memory in the order of their addresses."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._pieces: dict[int, Piece] = {}

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._pieces.values())

    def begins_at(self, address: int) -> Piece | None:
        """The piece that begins at `address`."""
        return self._pieces.get(address)

    def at(self, address: int) -> Piece | None:
        """The piece that `address` is in."""
        piece = self._pieces.get(address)
        if piece is not None:
            return piece
        while (place := bisect.bisect_right(self._begins, address) - 1) >= 0:
            piece = self._pieces.get(self._begins[place])
            if piece is not None:
                return piece if address < piece.end else None
            del self._begins[place]  # left over by an interrupt
        return None

    def overlapping(self, begin: int, end: int) -> list[Piece]:
        """The pieces that have a byte between `begin` and `end`, in their order."""
        begins, pieces = self._begins, self._pieces
        place = bisect.bisect_right(begins, begin)
        while place and begins[place - 1] not in pieces:
            place -= 1
            del begins[place]  # left over by an interrupt
        if place and begin < pieces[begins[place - 1]].end:
            place -= 1
        found = []
        while place < len(begins) and begins[place] < end:
            piece = pieces.get(begins[place])
            if piece is not None:
                found.append(piece)
            place += 1
        return found

    def put(self, piece: Piece) -> None:
        """Add a piece, in place of one that begins at the same address."""
        begin, begins = piece.begin, self._begins
        if begin not in self._pieces:
            place = bisect.bisect_left(begins, begin)
            if place == len(begins) or begins[place] != begin:  # none is left over here
                begins.insert(place, begin)
        self._pieces[begin] = piece

    def remove(self, piece: Piece) -> None:
        """Take a piece out."""
        del self._pieces[piece.begin]
        del self._begins[bisect.bisect_left(self._begins, piece.begin)]

    def clear(self) -> None:
        """Take out all of them."""
        self._pieces.clear()
        self._begins.clear()
