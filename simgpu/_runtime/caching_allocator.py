"""Where PyTorch's caching allocator would have put a device's tensors, and what it would keep.

The real one asks CUDA for segments, cuts blocks out of them, and keeps what is freed. This model
does the same with numbers alone: segments of 2 MiB for blocks up to 1 MiB, of 20 MiB for those
below 10 MiB, of a multiple of 2 MiB above; the smallest free block that is large enough, at the
lowest address; what is left over is cut off, and joins its free neighbours again when the block is
freed (c10/cuda/CUDACachingAllocator.cpp; constants of c10/core/AllocatorConfig.h). As far as it
goes: one stream, no settings of PYTORCH_CUDA_ALLOC_CONF, no private pools.

A device writes down what happened (`event_log`); this follows it when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

BLOCK = 512  # bytes; every block is a multiple of it
SMALL = 2**20  # bytes; the most that a block of the small pool has
_SMALL_SEGMENT = 2 * 2**20
_LARGE_SEGMENT = 20 * 2**20
_OWN_SEGMENT_FROM = 10 * 2**20  # bytes; blocks from here on get a segment of their size
_ROUND = 2 * 2**20  # bytes; what that size is a multiple of

POOLS = ("large_pool", "small_pool")
# The amounts that are kept, by the names of torch.cuda.memory_stats.
AMOUNTS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)


def rounded(nbytes: int) -> int:
    """Bytes of the block for so many."""
    return (nbytes + BLOCK - 1) & -BLOCK


def segment_size(size: int) -> int:
    """Bytes of the segment that is asked for where a block of so many has no place."""
    if size <= SMALL:
        return _SMALL_SEGMENT
    if size < _OWN_SEGMENT_FROM:
        return _LARGE_SEGMENT
    return (size + _ROUND - 1) & -_ROUND


class Amount:
    """One amount: what it is now, the most it was, and how much came and went."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def change(self, by: int) -> None:
        self.current += by
        if by > 0:
            self.allocated += by
            self.peak = max(self.peak, self.current)
        else:
            self.freed -= by


class Segment:
    """Memory that was asked of CUDA in one go, and is given back as a whole."""

    __slots__ = ("address", "first", "pool", "size")

    def __init__(self, address: int, size: int, pool: str) -> None:
        self.address, self.size, self.pool = address, size, pool
        self.first = Piece(self, address, size)

    def pieces(self) -> Iterable[Piece]:
        """The blocks of the segment, by address."""
        piece: Piece | None = self.first
        while piece is not None:
            yield piece
            piece = piece.next


class Piece:
    """A block: part of a segment, in use or free."""

    __slots__ = ("address", "next", "previous", "requested", "segment", "size", "token")

    def __init__(self, segment: Segment, address: int, size: int) -> None:
        self.segment, self.address, self.size = segment, address, size
        self.previous: Piece | None = None
        self.next: Piece | None = None
        self.token: object | None = None  # what it is in use for; None while it is free
        self.requested = 0

    @property
    def is_split(self) -> bool:
        return self.previous is not None or self.next is not None


class CachingAllocator:
    """The segments and blocks of one device.

    Args:
        base: the address of the first segment.
    """

    def __init__(self, base: int) -> None:
        self.segments: dict[int, Segment] = {}  # by address
        self.amounts = {name: {pool: Amount() for pool in ("all", *POOLS)} for name in AMOUNTS}
        self.retries = self.device_allocs = self.device_frees = 0
        self._next_address = base
        # The free blocks of each pool: size, address, block; sorted.
        self._free: dict[str, list[tuple[int, int, Piece]]] = {pool: [] for pool in POOLS}
        self._used: dict[int, Piece] = {}  # by id of what they are in use for

    def _change(self, name: str, pool: str, by: int) -> None:
        amount = self.amounts[name]
        amount["all"].change(by)
        amount[pool].change(by)

    @property
    def reserved(self) -> int:
        """Bytes of all segments."""
        return self.amounts["reserved_bytes"]["all"].current

    @property
    def allocated(self) -> int:
        """Bytes of all blocks in use, with what is too little to be cut off."""
        return self.amounts["allocated_bytes"]["all"].current

    def follow(self, event: int | tuple[int], limit: int) -> None:
        """Put what an event names somewhere, or free what a tuple holds if it is in use."""
        if not isinstance(event, tuple):
            self.allocate(event, limit)
        elif id(event[0]) in self._used:
            self.free(event[0])

    def allocate(self, token: int, limit: int) -> None:
        """Find a block for the bytes that `token` is; it knows them again by its identity.

        Where a segment is needed that goes past `limit`, unused ones are given back first.
        """
        size = rounded(token)
        if not size:
            return
        pool = "small_pool" if size <= SMALL else "large_pool"
        free = self._free[pool]
        place = bisect_left(free, (size,))
        fits = place < len(free)
        piece = free.pop(place)[2] if fits else self._new_segment(size, pool, limit)
        was_split = piece.is_split
        left = piece.size - size
        if left >= BLOCK if pool == "small_pool" else left > SMALL:
            self._cut(piece, size)
            self._change("inactive_split", pool, 0 if was_split else 1)
            self._change("inactive_split_bytes", pool, -size if was_split else left)
        elif was_split:
            self._change("inactive_split", pool, -1)
            self._change("inactive_split_bytes", pool, -piece.size)
        piece.token, piece.requested = token, int(token)
        self._used[id(token)] = piece
        self._count(piece, pool, 1)

    def _new_segment(self, size: int, pool: str, limit: int) -> Piece:
        whole = segment_size(size)
        if self.reserved + whole > limit and any(self._free.values()):
            self.retries += 1
            self.release()
        # A GPU is full where a segment does not fit, and a simulated device not yet: it gets what
        # is left, and more than that only where free blocks are scattered, or blocks keep a rest.
        left = (limit - self.reserved) & -BLOCK
        return self._reserve(max(size, min(whole, left)), pool)

    def _reserve(self, whole: int, pool: str) -> Piece:
        segment = Segment(self._next_address, whole, pool)
        self._next_address += whole
        self.segments[segment.address] = segment
        self.device_allocs += 1
        self._change("segment", pool, 1)
        self._change("reserved_bytes", pool, whole)
        return segment.first

    def _cut(self, piece: Piece, size: int) -> None:
        """Leave `size` bytes to a block; the rest is a free one behind it."""
        rest = Piece(piece.segment, piece.address + size, piece.size - size)
        rest.previous, rest.next = piece, piece.next
        if rest.next is not None:
            rest.next.previous = rest
        piece.next, piece.size = rest, size
        insort(self._free[piece.segment.pool], (rest.size, rest.address, rest))

    def _count(self, piece: Piece, pool: str, sign: int) -> None:
        for name in ("allocation", "active"):
            self._change(name, pool, sign)
        for name in ("allocated_bytes", "active_bytes"):
            self._change(name, pool, sign * piece.size)
        self._change("requested_bytes", pool, sign * piece.requested)

    def free(self, token: int) -> None:
        """The block of `token` is free again, and joins its free neighbours."""
        piece = self._used.pop(id(token))
        pool = piece.segment.pool
        self._count(piece, pool, -1)
        piece.token, piece.requested = None, 0
        blocks = nbytes = 0
        for other in (piece.previous, piece.next):
            if other is not None and other.token is None:
                blocks, nbytes = blocks - 1, nbytes - other.size
                self._take_out(other)
                self._join(piece, other)
        if piece.is_split:
            blocks, nbytes = blocks + 1, nbytes + piece.size
        insort(self._free[pool], (piece.size, piece.address, piece))
        self._change("inactive_split", pool, blocks)
        self._change("inactive_split_bytes", pool, nbytes)

    def _take_out(self, piece: Piece) -> None:
        free = self._free[piece.segment.pool]
        del free[bisect_left(free, (piece.size, piece.address))]

    def _join(self, piece: Piece, other: Piece) -> None:
        """Let `piece` have the bytes of a free neighbour too."""
        if other is piece.previous:
            piece.address, piece.previous = other.address, other.previous
            if piece.previous is None:
                piece.segment.first = piece
            else:
                piece.previous.next = piece
        else:
            piece.next = other.next
            if piece.next is not None:
                piece.next.previous = piece
        piece.size += other.size

    def release(self) -> None:
        """Give all segments back that nothing is in use of."""
        for pool, free in self._free.items():
            unused = [piece.segment for _, _, piece in free if not piece.is_split]
            free[:] = [entry for entry in free if entry[2].is_split]
            for segment in unused:
                del self.segments[segment.address]
                self.device_frees += 1
                self._change("segment", pool, -1)
                self._change("reserved_bytes", pool, -segment.size)

    def reserve_at_least(self, nbytes: int) -> None:
        """Have segments of so many bytes: for a past that is not known in full."""
        missing = nbytes - self.reserved
        if missing > 0:
            piece = self._reserve((missing + _ROUND - 1) & -_ROUND, "large_pool")
            insort(self._free["large_pool"], (piece.size, piece.address, piece))

    def reset_peaks(self) -> None:
        """Let the most of every amount begin again at what it is now."""
        for amount in self._all():
            amount.peak = amount.current

    def reset_totals(self) -> None:
        """Let what came and went begin again at zero."""
        for amount in self._all():
            amount.allocated = amount.freed = 0
        self.retries = 0

    def _all(self) -> Iterable[Amount]:
        return (amount for pools in self.amounts.values() for amount in pools.values())
