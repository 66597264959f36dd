"""A model of PyTorch's caching allocator: where it puts each tensor, and what it keeps reserved.

The real one asks CUDA for segments, cuts blocks out of them, and keeps what is freed. This model
does the same without memory: segments of 2 MiB for blocks up to 1 MiB, of 20 MiB for those below
10 MiB, of a multiple of 2 MiB above; the smallest free block that is large enough, at the lowest
address; what is left over is cut off, and joins its free neighbours again when the block is freed.
Each stream has segments of its own. A block that other streams have used (`Tensor.record_stream`)
is free when they are done, which is asked at the next allocation. Where a segment has no room on
the device, all unused segments are given back; if that is not enough, the device is full
(c10/cuda/CUDACachingAllocator.cpp; constants of c10/core/AllocatorConfig.h). Not in it are the
settings of PYTORCH_CUDA_ALLOC_CONF and private pools.

A device writes down what happened (`EventLog`); this follows it when it is asked.
"""

from __future__ import annotations

import _thread
import copy
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

# What PyTorch's caching allocator counts: amounts of its pools, now, at most, come and gone.
#
# Names and rules are those of torch.cuda.memory_stats (c10/core/CachingDeviceAllocator.h).

POOLS = ("small_pool", "large_pool")  # by number
ALL = len(POOLS)  # and the number of both together
KINDS = ("current", "peak", "allocated", "freed")


class Amount:
    """One amount of each pool and of both: what it is, the most it was, how much came and went."""

    __slots__ = ("_at_reset", "_came", "_peaks", "now")

    def __init__(self) -> None:
        self.now, self._peaks = [0, 0], [0, 0, 0]
        # What came since the last reset, and what there was then.
        self._came, self._at_reset = [0, 0], [0, 0]

    def change(self, pool: int, by: int) -> None:
        """There are so many more in a pool, or fewer; what goes may also be taken from `now`."""
        now = self.now
        now[pool] = amount = now[pool] + by
        if by > 0:
            self._came[pool] += by
            peaks = self._peaks
            if amount > peaks[pool]:
                peaks[pool] = amount
            amount = now[0] + now[1]
            if amount > peaks[ALL]:
                peaks[ALL] = amount

    def undo(self, pool: int, by: int) -> None:
        """Take back that so many came or went; a peak remains."""
        self.now[pool] -= by
        if by > 0:
            self._came[pool] -= by

    def current(self, number: int = ALL) -> int:
        """What there is in a pool, or in both."""
        return sum(self.now) if number == ALL else self.now[number]

    def peak(self, number: int = ALL) -> int:
        """The most that there was since the last reset of peaks."""
        return self._peaks[number]

    def allocated(self, number: int = ALL) -> int:
        """What came since the last reset of totals."""
        return sum(self._came) if number == ALL else self._came[number]

    def freed(self, number: int = ALL) -> int:
        """What went since the last reset of totals."""
        if number == ALL:
            return self.freed(0) + self.freed(1)
        return self._came[number] - self.now[number] + self._at_reset[number]

    def reset_peak(self) -> None:
        """Reset the peak to the current value."""
        self._peaks = [*self.now, sum(self.now)]

    def reset_totals(self) -> None:
        """Reset the accumulated counts to zero."""
        self._came, self._at_reset = [0, 0], [*self.now]


class HostMemory:
    """Blocks of pinned memory that live, and what came and went; a block is a power of two."""

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._blocks: dict[int, int] = {}  # bytes by the id of its mark; finalizers take them out
        self.amounts = {"requests": Amount(), "bytes": Amount()}

    def add(self, mark: int, nbytes: int) -> None:
        """A block lives from now on; one without bytes is none."""
        if not nbytes:
            return
        size = 1 << (nbytes - 1).bit_length()
        self.follow()
        with self._lock:
            self._blocks[mark] = size
            for amount, by in zip(self.amounts.values(), (1, size), strict=True):
                amount.change(0, by)

    def remove(self, mark: int) -> None:
        """A block is gone: counted when the figures are next asked for."""
        self._blocks.pop(mark, None)

    def follow(self) -> None:
        """Count the blocks that are gone."""
        with self._lock:
            sizes = list(self._blocks.values())
            for amount, now in zip(self.amounts.values(), (len(sizes), sum(sizes)), strict=True):
                amount.change(0, min(0, now - amount.current()))


host_memory = HostMemory()


Change = Callable[[Amount, int, int], None]

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


# A token is what an allocation is known by: its number on the device, from 1; below that, the
# number of its stream; and below that, the bytes that were asked for.
_STREAM = 64  # the bit with which the stream's number begins
_BYTES = (1 << _STREAM) - 1
_STREAMS = (1 << 32) - 1
NEXT = 1 << 96  # from one token to the next


def token_of(number: int, stream: int, nbytes: int) -> int:
    """The token of an allocation; no two that live have one number."""
    return number * NEXT | (stream & _STREAMS) << _STREAM | nbytes


def requested_by(token: int) -> int:
    """The bytes that were asked for."""
    return token & _BYTES


def stream_of(token: int) -> int:
    """The number of the stream that it is on."""
    return token >> _STREAM & _STREAMS


def size_of(token: int) -> int:
    """The bytes of the block."""
    return token + BLOCK - 1 & _BYTES & -BLOCK


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
        self.token: object | None = None  # of its allocation, or AWAITING; None while it is free
        # Bytes that were asked for; also of a free block, when it was last in use.
        self.requested = self.requested_before = 0
        self.users: Collection[int] = ()  # other streams that use it

    @property
    def is_split(self) -> bool:
        return self.size < self.segment.size


AWAITING = object()  # the token of blocks that are freed and wait for other streams


class CachingAllocator:
    """The segments and blocks of one device.

    Args:
        index: the device's ordinal; its first segment is at (index + 1) << 40.
        shrinks: whether a segment may be as small as what is left of the device, which is how a
            device works that has less than one segment of a GPU: it is full when its blocks fill
            it, however they are scattered.
    """

    def __init__(self, index: int, shrinks: bool = False) -> None:
        self.segments: dict[int, Segment] = {}  # by address
        self._used_count, self._used_bytes, self._requested_bytes = Amount(), Amount(), Amount()
        self._split_count, self._split_bytes = Amount(), Amount()
        self._segment_count, self._reserved_bytes = Amount(), Amount()
        # By the names of torch.cuda.memory_stats. What is active is in use, or waits for other
        # streams after it was freed: until something does, one object counts both.
        self.amounts = {
            "allocation": self._used_count,
            "segment": self._segment_count,
            "active": self._used_count,
            "inactive_split": self._split_count,
            "allocated_bytes": self._used_bytes,
            "reserved_bytes": self._reserved_bytes,
            "active_bytes": self._used_bytes,
            "inactive_split_bytes": self._split_bytes,
            "requested_bytes": self._requested_bytes,
        }
        self._has_waited = False
        # Of `memory_stats`, what was counted since the last reset.
        self.retries = self.device_allocs = self.device_frees = self.syncs = 0
        self.reserved = self.taken = 0  # bytes of all segments, and of all blocks as asked for
        self._shrinks = shrinks
        self._index, self._next_address = index, (index + 1) << 40
        self._pools: dict[int, tuple[Pool, Pool]] = {}  # by stream
        self._pieces: dict[int, Piece] = {}  # by token
        self._awaiting: list[Piece] = []
        # Streams whose blocks go on waiting at the next allocation, though they are freed.
        self.busy: Collection[int] = ()

    @property
    def allocated(self) -> int:
        """Bytes of all blocks in use, with what is too little to be cut off."""
        return self._used_bytes.current()

    @property
    def live_count(self) -> int:
        """How many blocks are in use."""
        return len(self._pieces)

    def allocate(self, token: int, limit: int) -> bool:
        """Find a block; False if no segment fits below `limit`."""
        requested = token & _BYTES
        size = requested + BLOCK - 1 & -BLOCK
        if not size or token in self._pieces:
            return True
        if self._shrinks and self.taken + size > limit:
            self.retry()
            return False
        if self._awaiting:
            self._free_awaited(self.busy)
        stream = token >> _STREAM & _STREAMS
        try:
            pool = self._pools[stream][size > SMALL]
        except KeyError:
            self._pools[stream] = pools = Pool(stream, 0), Pool(stream, 1)
            pool = pools[size > SMALL]
        free = pool.free
        place = bisect_left(free, (size,))
        piece = free.pop(place)[2] if place < len(free) else self._new_segment(size, pool, limit)
        if piece is None:
            return False
        self._cut(piece, size)
        self.taken += size
        piece.token, self._pieces[token] = token, piece
        piece.requested_before, piece.requested = piece.requested, requested
        number = pool.number
        self._used_count.change(number, 1)
        self._used_bytes.change(number, piece.size)
        self._requested_bytes.change(number, requested)
        if self._has_waited:
            self._change_active(Amount.change, piece, 1)
        return True

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
        segment, left = piece.segment, piece.size - size
        pool, was_split = segment.pool, piece.size < segment.size
        if left > SMALL if pool.number else left >= BLOCK:
            rest = Piece(segment, piece.address + size, left)
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
        piece = self._pieces.get(token)
        if piece is not None and stream != piece.segment.pool.stream:
            piece.users = {stream, *piece.users}

    def free(self, token: int) -> None:
        """The program has dropped what has the block of `token`; nothing if nothing has."""
        piece = self._pieces.pop(token, None)
        if piece is None:
            return
        if piece.users and not self._has_waited:
            self._has_waited = True
            for name, used in (("active", self._used_count), ("active_bytes", self._used_bytes)):
                self.amounts[name] = copy.deepcopy(used)
        self.taken -= size_of(token)
        pool = piece.segment.pool.number
        self._used_count.now[pool] -= 1
        self._used_bytes.now[pool] -= piece.size
        if piece.users:
            piece.token = AWAITING
            self._awaiting.append(piece)
        else:
            self._make_free(piece)

    def _change_active(self, change: Change, piece: Piece, sign: int) -> None:
        pool = piece.segment.pool.number
        change(self.amounts["active"], pool, sign)
        change(self.amounts["active_bytes"], pool, sign * piece.size)

    def _make_free(self, piece: Piece) -> None:
        if self._has_waited:
            self._change_active(Amount.change, piece, -1)
        self._requested_bytes.now[piece.segment.pool.number] -= piece.requested
        self._join(piece, Amount.change)

    def _free_awaited(self, busy: Collection[int] = ()) -> None:
        """Free the blocks that other streams have used, but for those that are busy."""
        awaiting, self._awaiting, self.busy = self._awaiting, [], ()
        ready: list[Piece] = []
        for piece in awaiting:
            is_busy = any(user in busy for user in piece.users)
            (self._awaiting if is_busy else ready).append(piece)
        # A block is free at the last of its events: peaks depend on the order.
        for piece in sorted(ready, key=lambda piece: max(map(self._turn, piece.users))):
            self._make_free(piece)

    def _turn(self, stream: int) -> int:
        """Where CUDA's allocator has the events of a stream: it keeps them in a hash table.

        The hash of a stream is that of c10/core/Stream.h; the table takes the upper bits of its
        product with the golden ratio (c10/util/flat_hash_map.h).
        """
        return ((1 << 56 | self._index << 48 | stream) * 11400714819323198485) % 2**64

    def take_back(self, token: int) -> None:
        """Undo `allocate`, but for a segment that it needed and for peaks."""
        piece = self._pieces.pop(token, None)
        if piece is None:
            return
        self.taken -= size_of(token)
        pool = piece.segment.pool.number
        self._used_count.undo(pool, 1)
        self._used_bytes.undo(pool, piece.size)
        self._requested_bytes.undo(pool, piece.requested)
        if self._has_waited:
            self._change_active(Amount.undo, piece, 1)
        piece.requested = piece.requested_before
        self._join(piece, lambda amount, pool, by: amount.undo(pool, -by))

    def _join(self, piece: Piece, change: Change) -> None:
        """Make a block free, which joins its free neighbours; `change` is how that is counted."""
        segment = piece.segment
        pool, free = segment.pool, segment.pool.free
        piece.token, piece.users = None, ()
        blocks = nbytes = 0
        for other in (piece.previous, piece.next):
            if other is not None and other.token is None:
                blocks, nbytes = blocks - 1, nbytes - other.size
                del free[bisect_left(free, (other.size, other.address))]
                _join(piece, other)
        if piece.size < segment.size:
            blocks, nbytes = blocks + 1, nbytes + piece.size
        insort(free, (piece.size, piece.address, piece))
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
        """Reset every peak to its current value."""
        for amount in {*self.amounts.values()}:
            amount.reset_peak()

    def reset_totals(self) -> None:
        """Reset the accumulated counts to zero."""
        for amount in {*self.amounts.values()}:
            amount.reset_totals()
        self.retries = self.device_allocs = self.device_frees = self.syncs = 0


def _join(piece: Piece, other: Piece) -> None:
    """Merge `piece` with a free neighbour."""
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


# `EventLog`: what was allocated and freed on a device, to compute addresses on request.
#
# Writing it down costs next to nothing. A model of CUDA's caching allocator (above) follows the
# events when addresses are asked for, and where there might be no room.

# Segments that a stream begins for a few bytes.
BEGUN = SMALL_SEGMENT + LARGE_SEGMENT


class EventLog:
    """What was taken and given back on one device since its placement last followed it.

    What was taken is its token, and what was given back is its token below zero: unlike tuples,
    numbers cost the garbage collector nothing. All else is a tuple: of a token and a stream that
    uses it, or of None and the streams that are busy when bytes are taken next.

    Args:
        index, capacity: of the device; `limit` is what it may take, at first all of that.
        live: returns the tokens of all allocations that live.
    """

    def __init__(self, index: int, capacity: int, live: Callable[[], set[int]]) -> None:
        self._index, self._capacity, self._live, self.limit = index, capacity, live, capacity
        self._events: deque[Any] = deque()
        self.note: Callable[[int | tuple[Any, Any]], None] = self._events.append
        self._placement = self._empty()
        # Whether a step is being placed: by another thread, or by this one, which a finalizer or a
        # signal handler has interrupted; and whether one was given up in the middle.
        self._underway = self._spoilt = False
        self._lock: Any = _thread.RLock()  # one of C: `simgpu.schedule` switches no threads here

    def __len__(self) -> int:
        return len(self._events)

    @property
    def reserved(self) -> int:
        """Bytes of the segments that there were when the events were last followed."""
        return self._placement.reserved

    def _empty(self) -> CachingAllocator:
        return CachingAllocator(self._index, self._capacity < LARGE_SEGMENT)

    def placement(self) -> CachingAllocator:
        """The segments and blocks that CUDA's caching allocator would have by now."""
        self._follow_and(lambda placement: None)
        return self._placement

    def place(self, token: int) -> bool:
        """Whether there is room for `token`, which then has a block: nothing is to be noted."""
        found = self._follow_and(lambda placement: placement.allocate(token, self.limit), token)
        return found is not False

    def take_back(self, token: int) -> None:
        """Undo `place`."""
        self._follow_and(lambda placement: placement.take_back(token), -token)

    def forget(self) -> None:
        """Place what lives anew when this is next asked: it may hold what does not."""
        self._spoilt = True

    def _follow_and(
        self, step: Callable[[CachingAllocator], bool | None], *events: int
    ) -> bool | None:
        """Follow what was noted, and do one more step; within another step, only note `events`."""
        with self._lock:
            if self._underway:
                self._events.extend(events)
                return None
            self._underway, done = True, False
            try:
                self._follow()
                found = step(self._placement)
                done = True
                return found
            finally:
                self._spoilt |= not done  # half of an event may be in the placement
                self._underway = False

    def _follow(self) -> None:
        if self._spoilt:
            self._place_anew()
        events, limit, placement = self._events, self.limit, self._placement
        while events:
            event = events.popleft()
            if isinstance(event, tuple):
                if event[0] is None:
                    placement.busy = event[1]
                else:
                    placement.use(*event)
            elif event < 0:
                placement.free(-event)
            elif not placement.allocate(event, limit):
                # An admitted allocation has an address, also where threads allocate at the same
                # time.
                placement.allocate(event, 1 << 62)

    def _place_anew(self) -> None:
        """Place what lives, in some order."""
        self._events.clear()
        placement = self._empty()
        for token in self._live():
            placement.allocate(token, 1 << 62)
        self._placement, self._spoilt = placement, False
