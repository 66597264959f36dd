"""Which accesses each piece of memory has to be compared with: the last ones that count.

A region is the memory of one allocation. Of memory that was there before the watching began no
allocation is known: it is a region from its first access on, which grows with later ones.
"""

from __future__ import annotations

from simgpu._runtime.by_address import ByAddress
from simgpu._simulation.races.accesses import Access
from simgpu._simulation.races.order import Clock, Queue


class Region:
    """Memory from `begin` to `end`, the stream that owns it and those that it was recorded on."""

    __slots__ = ("accesses", "begin", "end", "owner", "recorded")

    def __init__(self, begin: int, end: int, owner: Queue | None = None) -> None:
        self.begin, self.end, self.owner = begin, end, owner
        self.recorded: set[Queue] = set()
        self.accesses: list[Access] = []

    def meet(self, access: Access, clock: Clock) -> list[Access]:
        """The accesses that may happen at the same time as `access`, and one of the two writes.

        It is remembered in place of those that it comes after and covers. Whatever races with one
        of these and comes after `access` does not exist; whatever does not come after it races
        with `access`, too.
        """
        begin, end, writes = access.begin, access.end, access.writes
        whole = access.layout is None
        kept, racing = [], []
        for other in self.accesses:
            if clock.get(other.queue, 0) >= other.number:
                covered = whole and begin <= other.begin and other.end <= end
                if covered and (writes or not other.writes):
                    continue
            elif (writes or other.writes) and other.begin < end and begin < other.end:
                racing.append(other)
            kept.append(other)
        kept.append(access)
        self.accesses = kept
        return racing


class Regions(ByAddress[Region]):
    """The regions of all devices, or of pinned memory."""

    def allocate(self, begin: int, end: int, owner: Queue | None = None) -> Region:
        """A new region, in place of all that was remembered of these bytes."""
        region = Region(begin, end, owner)
        for other in self.overlapping(begin, end):
            self.remove(other)
        self.put(region)
        return region

    def free(self, begin: int) -> Region | None:
        """Forget the region that begins there, and return it."""
        region = self.begins_at(begin)
        if region is not None:
            self.remove(region)
        return region

    def of(self, begin: int, end: int) -> Region:
        """The region of a span: of its allocation, or one made for it."""
        region = self.at(begin)
        if region is not None and end <= region.end:
            return region
        pieces = self.overlapping(begin, end)
        begin = min([begin, *(piece.begin for piece in pieces)])
        end = max([end, *(piece.end for piece in pieces)])
        region = Region(begin, end)  # has no owner: nobody asks on which streams it was recorded
        for piece in pieces:
            self.remove(piece)
            region.accesses += piece.accesses
        self.put(region)
        return region
