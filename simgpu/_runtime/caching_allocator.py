"""PyTorch's caching allocator for CUDA, by numbers: where tensors go, and what has no room.

The real one asks CUDA for segments, cuts blocks out of them, and keeps what is freed. This model
does the same without memory: segments of 2 MiB for blocks up to 1 MiB, of 20 MiB for those below
10 MiB, of a multiple of 2 MiB above; the smallest free block that is large enough, at the lowest
address; what is left over is cut off, and joins its free neighbours again when the block is freed.
Each stream has segments of its own. A block that other streams have used (`Tensor.record_stream`)
is free when they are done, which is asked at the next allocation. Where a segment has no room on
the device, all unused segments are given back; if that is not enough, the device is full
(c10/cuda/CUDACachingAllocator.cpp; constants of c10/core/AllocatorConfig.h). Not in it are the
settings of PYTORCH_CUDA_ALLOC_CONF and private pools.

A device writes down what happened (`event_log`); this follows it when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable

from simgpu._runtime.allocator_amounts import Active, Amount

BLOCK = 512  # bytes; every block is a multiple of it
MOST = 2**60  # bytes; the allocator takes larger requests for mistakes
SMALL = 2**20  # bytes; the most that a block of the small pool has
SMALL_SEGMENT = 2 * 2**20
LARGE_SEGMENT = 20 * 2**20
_OWN_SEGMENT_FROM = 10 * 2**20  # bytes; blocks from here on get a segment of their size
_ROUND = 2 * 2**20  # bytes; what that size is a multiple of


def rounded(nbytes: int) -> int:
    """Bytes of the block for so many."""
    return (nbytes + BLOCK - 1) & -BLOCK


def segment_size(size: int) -> int:
    """Bytes of the segment that is asked for where a block of so many fits in no other."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < _OWN_SEGMENT_FROM:
        return LARGE_SEGMENT
    return (size + _ROUND - 1) & -_ROUND


class Pool:
    """The free blocks of one size class of one stream."""

    __slots__ = ("free", "number", "stream")

    def __init__(self, stream: int, number: int) -> None:
        self.stream, self.number = stream, number
        self.free: list[tuple[int, int, Piece]] = []  # size, address, block; sorted


class Segment:
    """Memory that was asked of CUDA in one go, and is given back as a whole."""

    __slots__ = ("address", "first", "pool", "size")

    def __init__(self, address: int, size: int, pool: Pool) -> None:
        self.address, self.size, self.pool = address, size, pool
        self.first = Piece(self, address, size)

    def pieces(self) -> Iterable[Piece]:
        """The blocks of the segment, by address."""
        piece: Piece | None = self.first
        while piece is not None:
            yield piece
            piece = piece.next


class Piece:
    """A block: part of a segment, in use, free, or freed and waiting for other streams."""

    __slots__ = (
        *("address", "next", "previous", "segment", "size"),
        *("requested", "requested_before", "token", "users"),
    )

    def __init__(self, segment: Segment, address: int, size: int) -> None:
        self.segment, self.address, self.size = segment, address, size
        self.previous: Piece | None = None
        self.next: Piece | None = None
        self.token: object | None = (
            None  # what it is in use for, or AWAITING; None while it is free
        )
        # Bytes that were asked for; also of a free block, when it was last in use.
        self.requested = self.requested_before = 0
        self.users: Collection[int] = frozenset()  # other streams that use it

    @property
    def is_split(self) -> bool:
        return self.previous is not None or self.next is not None


AWAITING = object()  # the token of blocks that are freed and wait for other streams


class CachingAllocator:
    """The segments and blocks of one device.

    Args:
        base: the address of the first segment.
        shrinks: whether a segment may be as small as what is left of the device, which is how a
            device works that has less than one segment of a GPU; it then refuses nothing.
    """

    def __init__(self, base: int, shrinks: bool = False) -> None:
        self.segments: dict[int, Segment] = {}  # by address
        self._used_count, self._used_bytes, self._requested_bytes = Amount(), Amount(), Amount()
        self._split_count, self._split_bytes = Amount(), Amount()
        self._segment_count, self._reserved_bytes = Amount(), Amount()
        self._waiting_count, self._waiting_bytes = Amount(), Amount()
        self._active = (
            Active(self._used_count, self._waiting_count),
            Active(self._used_bytes, self._waiting_bytes),
        )
        # By the names of torch.cuda.memory_stats.
        self.amounts: dict[str, Amount | Active] = {
            "allocation": self._used_count,
            "segment": self._segment_count,
            "active": self._active[0],
            "inactive_split": self._split_count,
            "allocated_bytes": self._used_bytes,
            "reserved_bytes": self._reserved_bytes,
            "active_bytes": self._active[1],
            "inactive_split_bytes": self._split_bytes,
            "requested_bytes": self._requested_bytes,
        }
        # Of `memory_stats`, what was counted since the last reset.
        self.retries = self.device_allocs = self.device_frees = self.syncs = 0
        self.reserved = 0  # bytes of all segments
        self._shrinks = shrinks
        self._next_address = base
        self._pools: dict[int, tuple[Pool, Pool]] = {}  # by stream
        self._used: dict[int, Piece] = {}  # by id of what they are in use for
        self._awaiting: list[Piece] = []
        self._busy: Collection[int] = ()

    @property
    def allocated(self) -> int:
        """Bytes of all blocks in use, with what is too little to be cut off."""
        return self._used_bytes.current()

    def piece_of(self, token: object) -> Piece | None:
        """The block that `token` has."""
        return self._used.get(id(token))

    def allocate(self, token: int, requested: int, stream: int, limit: int) -> bool:
        """Find a block for `token` bytes on a stream; False if no segment fits below `limit`.

        `token` is the size of the block, and a number object of its own by which `free` and `use`
        know it. Of the block, `requested` bytes were asked for.
        """
        if not token:
            return True
        if self._awaiting:
            self._free_awaited(self._busy)
        pool = self._pool(stream, token)
        free = pool.free
        place = bisect_left(free, (token,))
        piece = free.pop(place)[2] if place < len(free) else self._new_segment(token, pool, limit)
        if piece is None:
            return False
        self._cut(piece, int(token))
        piece.token = token
        piece.requested_before, piece.requested = piece.requested, requested
        self._used[id(token)] = piece
        number = pool.number
        self._used_count.change(number, 1)
        self._used_bytes.change(number, piece.size)
        self._requested_bytes.change(number, requested)
        if self._awaiting:
            for amount in self._active:
                amount.look()
        return True

    def _pool(self, stream: int, size: int) -> Pool:
        pools = self._pools.get(stream)
        if pools is None:
            pools = self._pools[stream] = Pool(stream, 0), Pool(stream, 1)
        return pools[size > SMALL]

    def _new_segment(self, size: int, pool: Pool, limit: int) -> Piece | None:
        whole = segment_size(size)
        if self.reserved + whole > limit and (not self._shrinks or self._has_free_blocks()):
            self.retry()
        if self.reserved + whole > limit:
            if not self._shrinks:
                return None
            # More than what is left only where free blocks are scattered, or keep a rest.
            whole = max(size, min(whole, (limit - self.reserved) & -BLOCK))
        return self._reserve(whole, pool)

    def _has_free_blocks(self) -> bool:
        return any(pool.free for pools in self._pools.values() for pool in pools)

    def retry(self) -> None:
        """Give back what is unused, since there was no room."""
        self.release()
        self.retries += 1

    def _reserve(self, whole: int, pool: Pool) -> Piece:
        segment = Segment(self._next_address, whole, pool)
        self._next_address += whole
        self.segments[segment.address] = segment
        self.device_allocs += 1
        self.reserved += whole
        self._segment_count.change(pool.number, 1)
        self._reserved_bytes.change(pool.number, whole)
        return segment.first

    def _cut(self, piece: Piece, size: int) -> None:
        """Leave `size` bytes to a block that was free, if the rest is worth a block of its own."""
        pool, was_split = piece.segment.pool, piece.is_split
        left = piece.size - size
        if left > SMALL if pool.number else left >= BLOCK:
            rest = Piece(piece.segment, piece.address + size, left)
            rest.previous, rest.next = piece, piece.next
            rest.requested = piece.requested
            if rest.next is not None:
                rest.next.previous = rest
            piece.next, piece.size = rest, size
            insort(pool.free, (left, rest.address, rest))
            if was_split:
                self._split_bytes.change(pool.number, -size)
            else:
                self._split_count.change(pool.number, 1)
                self._split_bytes.change(pool.number, left)
        elif was_split:
            self._split_count.change(pool.number, -1)
            self._split_bytes.change(pool.number, -piece.size)

    def use(self, token: int, stream: int) -> None:
        """A stream uses the block of `token`, beside the one that it was allocated on."""
        piece = self._used.get(id(token))
        if piece is not None and stream != piece.segment.pool.stream:
            piece.users = {stream, *piece.users}

    def free(self, token: int) -> None:
        """The program has dropped what has the block of `token`; nothing if nothing has."""
        piece = self._used.pop(id(token), None)
        if piece is None:
            return
        pool = piece.segment.pool.number
        self._used_count.change(pool, -1)
        self._used_bytes.change(pool, -piece.size)
        if piece.users:
            piece.token = AWAITING
            self._awaiting.append(piece)
            self._waiting_count.change(pool, 1)
            self._waiting_bytes.change(pool, piece.size)
        else:
            self._requested_bytes.change(pool, -piece.requested)
            self._join(piece, Amount.change)

    def busy_at_next_allocation(self, streams: Collection[int]) -> None:
        """Let freed blocks that these streams use wait on, at the allocation that comes next."""
        self._busy = streams

    def _free_awaited(self, busy: Collection[int] = ()) -> None:
        """Free the blocks that other streams have used, but for those that are busy."""
        awaiting, self._awaiting, self._busy = self._awaiting, [], ()
        for piece in awaiting:
            if busy and any(user in busy for user in piece.users):
                self._awaiting.append(piece)
            else:
                pool = piece.segment.pool.number
                self._waiting_count.change(pool, -1)
                self._waiting_bytes.change(pool, -piece.size)
                self._requested_bytes.change(pool, -piece.requested)
                self._join(piece, Amount.change)

    def take_back(self, token: int) -> None:
        """Undo `allocate`, but for a segment that it needed and for peaks."""
        piece = self._used.pop(id(token), None)
        if piece is None:
            return
        pool = piece.segment.pool.number
        self._used_count.undo(pool, 1)
        self._used_bytes.undo(pool, piece.size)
        self._requested_bytes.undo(pool, piece.requested)
        piece.requested = piece.requested_before
        self._join(piece, _undo_the_opposite)

    def _join(self, piece: Piece, change: Callable[[Amount, int, int], None]) -> None:
        """Make a block free, which joins its free neighbours; `change` is how that is counted."""
        pool = piece.segment.pool
        piece.token, piece.users = None, frozenset()
        blocks = nbytes = 0
        for other in (piece.previous, piece.next):
            if other is not None and other.token is None:
                blocks, nbytes = blocks - 1, nbytes - other.size
                del pool.free[bisect_left(pool.free, (other.size, other.address))]
                _join(piece, other)
        if piece.is_split:
            blocks, nbytes = blocks + 1, nbytes + piece.size
        insort(pool.free, (piece.size, piece.address, piece))
        if blocks:
            change(self._split_count, pool.number, blocks)
        if nbytes:
            change(self._split_bytes, pool.number, nbytes)

    def release(self) -> None:
        """Give all segments back that nothing is in use of, when all streams are done."""
        self.syncs += 1
        self._free_awaited()
        for pools in self._pools.values():
            for pool in pools:
                unused = [piece.segment for _, _, piece in pool.free if not piece.is_split]
                pool.free[:] = [entry for entry in pool.free if entry[2].is_split]
                for segment in unused:
                    del self.segments[segment.address]
                    self.device_frees += 1
                    self.reserved -= segment.size
                    self._segment_count.change(pool.number, -1)
                    self._reserved_bytes.change(pool.number, -segment.size)

    def reset_peaks(self) -> None:
        """Let the most of every amount begin again at what it is now."""
        for amount in self.amounts.values():
            amount.reset_peak()

    def reset_totals(self) -> None:
        """Let what came and went begin again at zero."""
        for amount in (*self.amounts.values(), self._waiting_count, self._waiting_bytes):
            amount.reset_totals()
        self.retries = self.device_allocs = self.device_frees = self.syncs = 0


def _undo_the_opposite(amount: Amount, pool: int, by: int) -> None:
    amount.undo(pool, -by)


def _join(piece: Piece, other: Piece) -> None:
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
