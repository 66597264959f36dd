"""Which accesses each piece of memory has to be compared with: the last ones that count.

A region is the memory of one allocation. Of memory that was there before the watching began no
allocation is known: it is a region from its first access on, which grows with later ones.
"""

from __future__ import annotations

import bisect

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
        _, _, begin, end, layout, writes, _, _ = access
        kept, racing = [], []
        for other in self.accesses:
            if clock.get(other.queue, 0) >= other.number:
                covered = layout is None and begin <= other.begin and other.end <= end
                if covered and (writes or not other.writes):
                    continue
            elif (writes or other.writes) and other.begin < end and begin < other.end:
                racing.append(other)
            kept.append(other)
        kept.append(access)
        self.accesses = kept
        return racing


class Regions:
    """The regions of all devices and of pinned memory, by address; none overlaps another."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._by_begin: dict[int, Region] = {}

    def __bool__(self) -> bool:
        return bool(self._begins)

    def at(self, address: int) -> Region | None:
        """The region that `address` lies in."""
        region = self._by_begin.get(address)
        if region is not None:
            return region
        at = bisect.bisect_right(self._begins, address) - 1
        if at < 0:
            return None
        region = self._by_begin[self._begins[at]]
        return region if address < region.end else None

    def allocate(self, begin: int, end: int, owner: Queue | None = None) -> Region:
        """A new region, in place of all that was remembered of these bytes."""
        region = Region(begin, end, owner)
        at = bisect.bisect_left(self._begins, begin)
        before, after = self._begins[max(at - 1, 0) : at], self._begins[at : at + 1]
        if (before and self._by_begin[before[0]].end > begin) or (after and after[0] < end):
            for other in self._overlapping(begin, end):
                self._remove(other)
            self._insert(region)
        else:
            self._begins.insert(at, begin)
            self._by_begin[begin] = region
        return region

    def free(self, begin: int) -> Region | None:
        """Forget the region that begins there, and return it."""
        region = self._by_begin.get(begin)
        if region is not None:
            self._remove(region)
        return region

    def of(self, begin: int, end: int) -> Region:
        """The region of a span: of its allocation, or one made for it."""
        region = self.at(begin)
        if region is not None and end <= region.end:
            return region
        pieces = self._overlapping(begin, end)
        begin = min([begin, *(piece.begin for piece in pieces)])
        end = max([end, *(piece.end for piece in pieces)])
        region = Region(begin, end)
        for piece in pieces:
            self._remove(piece)
            region.accesses += piece.accesses
            region.recorded |= piece.recorded
        self._insert(region)
        return region

    def _overlapping(self, begin: int, end: int) -> list[Region]:
        first = max(bisect.bisect_right(self._begins, begin) - 1, 0)
        last = bisect.bisect_left(self._begins, end)
        regions = (self._by_begin[each] for each in self._begins[first:last])
        return [region for region in regions if region.end > begin]

    def _insert(self, region: Region) -> None:
        bisect.insort(self._begins, region.begin)
        self._by_begin[region.begin] = region

    def _remove(self, region: Region) -> None:
        del self._by_begin[region.begin]
        del self._begins[bisect.bisect_left(self._begins, region.begin)]
