"""One simulated GPU: how many bytes of its memory are taken, its generator, its streams.

The count of its memory is called the ledger: what was allocated, and what was freed.
The memory itself is that of CPU tensors; `simgpu._memory` says which belong to a device.
"""

from __future__ import annotations

import gc
import operator
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import compress, repeat
from typing import Any, TypeVar

import torch

from simgpu._config.gpus import GENERIC, Model
from simgpu._core import clock
from simgpu._core.allocator_model import (
    BEGUN,
    BLOCK,
    LARGE_SEGMENT,
    MOST,
    NEXT,
    CachingAllocator,
    EventLog,
    requested_by,
    size_of,
    stream_of,
    token_of,
)
from simgpu._core.device_generator import make_generator
from simgpu._core.hooks import hooks
from simgpu._random.layout import resident_threads
from simgpu._util import thread_rows
from simgpu._util.interrupts import CallAtEnd
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.thread_rows import STREAMS

# What `Device.allocate` makes: what keeps bytes of a device, and what they are known by.


class Allocation(CallAtEnd):
    """Bytes of a device that are taken for as long as this object lives; made by `Device.allocate`.

    It hangs on the host tensor that owns a simulated tensor's memory, so it dies exactly when the
    last tensor, view or autograd node over that memory does.
    """

    __slots__ = ()

    @property
    def token(self) -> int:
        """What the allocation is known by; its call has it below zero, unless it is a Block."""
        given: int = self.args[-1]
        return given if given > 0 else -given


class Block(int):
    """The token of one allocation, which also says where its memory is.

    `Device.allocate` makes one where instruments see allocations.
    """

    address: int  # of the storage, 0 where none is known

    @property
    def nbytes(self) -> int:
        """Bytes before they were rounded up."""
        return requested_by(self)

    @property
    def stream(self) -> int:
        """The number of the stream that was current."""
        return stream_of(self)

    @classmethod
    def of(cls, token: int, storage: torch.UntypedStorage | None) -> Block:
        """The block of a storage, if there is one."""
        self = cls(token)
        self.address = 0 if storage is None else storage.data_ptr()
        return self


# Objects that Python's garbage collector keeps track of, by their class, the newest first.
#
# A table of them would cost something wherever one is made. Looking for them costs nothing until
# they are asked for; then it takes the longer the more objects the program has, most of which are
# old. So a caller that has found all of them stops.

T = TypeVar("T")


def live_objects(kind: type[T]) -> Iterator[T]:
    """Every object whose class is `kind` itself; one that grows older meanwhile may come twice.

    What `gc.freeze` has hidden comes last. It is not hidden again: which objects those
    were is not known.
    """
    for generation in range(3):
        yield from _of_generation(kind, generation)
    if gc.get_freeze_count():
        gc.unfreeze()
        yield from _of_generation(kind, 2)


def _of_generation(kind: type[T], generation: int) -> list[T]:
    objects = gc.get_objects(generation)
    objects.reverse()
    # A list of its own: a caller that stops early must not keep all others alive.
    return [*compress(objects, map(operator.is_, map(type, objects), repeat(kind)))]


# Bytes that are taken before the allocator's model follows: so many blocks have 20 MB of events.
_FOLLOW_AFTER = 2**17 * BLOCK


class Device:
    """One simulated GPU: its memory ledger, its random stream and the streams made on it."""

    __slots__ = (
        *("_dead_blocks", "_enough_for", "_follow_at", "_last_token", "_note", "_place_of_stream"),
        *("_recorder", "_stream", "_taken", "background_stream", "busy_until", "capacity"),
        *("confirm", "generator", "index", "limit", "log", "model", "number"),
        *("out_of_memory_count", "resident_threads", "torch_device", "was_used"),
    )

    def __init__(
        self,
        index: int,
        capacity: int,
        model: Model = GENERIC,
        rng: str = "cuda",
        number: int | None = None,
    ) -> None:
        self.index = index
        # Among all that the machine has, of which a process may see some only.
        self.number = index if number is None else number
        # Asked once, before the first allocation: which device has the index now.
        self.confirm: Callable[[int], Device] | None = None
        self.model = model
        self.torch_device = torch.device(DEVICE_TYPE, index)
        self.capacity = self.limit = capacity
        self.out_of_memory_count = 0
        self.was_used = False  # whether an allocation found room
        # The ledger: what was taken and given back, in this order.
        self.log = EventLog(index, capacity, self.live)
        self._note = self.log.note
        self._taken = 0  # bytes that were ever taken
        # While one stream takes no more than these, there is room for sure, and the log is short
        # (`_make_sure`).
        self._enough_for = self._follow_at = -1
        self._stream = 0
        self._last_token = 0  # without its bytes
        self._place_of_stream = STREAMS + index  # in the row of a thread
        # Blocks that have died, which instruments do not know yet.
        self._dead_blocks: deque[Block] = deque()
        self._recorder: Callable[[int], None] | None = None  # see `call_at_free`
        self.background_stream: torch.Stream | None = None
        # By number of a stream, the moment until which it sleeps (`streams.sleep`): work itself
        # is done as soon as it is asked for.
        self.busy_until: dict[int, float] = {}
        self.generator = make_generator(rng, index)
        # Of its GPU, which only random numbers depend on.
        self.resident_threads = resident_threads(
            model.multi_processor_count, model.max_threads_per_multi_processor
        )

    # No locks below, since memory is given back in the middle of anything. With the GIL, threads
    # are switched and signals handled where a function begins, a call returns or a loop starts
    # over, so neither happens between two lines that do nothing of that kind.

    def allocate(
        self, nbytes: int, storage: torch.UntypedStorage | None = None
    ) -> Allocation | None:
        """Enter a block for `nbytes` in the ledger, until the result dies; None if it has no room.

        `storage` is their owner: instruments get its address and exact size.
        """
        size = nbytes + 511 & -512  # `rounded` without a call
        if hooks.before_allocate:
            self._ask(size, storage)
        stream = thread_rows.per_thread.row[self._place_of_stream]
        taken = self._taken + (size or BLOCK)  # the log has an event also for no bytes
        if taken > self._follow_at or stream != self._stream or hooks.allocated:
            return self._allocate_exactly(nbytes, stream, storage)
        self._taken = taken
        self._last_token = token = self._last_token + NEXT
        token |= nbytes
        allocation = Allocation(self._note, -token)
        self._note(token)
        return allocation

    def _new_token(self, nbytes: int, stream: int) -> int:
        """The token of an allocation on any stream."""
        self._last_token = last = self._last_token + NEXT
        return last & -NEXT | token_of(0, stream, nbytes)

    def _allocate_exactly(
        self, nbytes: int, stream: int, storage: torch.UntypedStorage | None
    ) -> Allocation | None:
        """`allocate` where the model of the allocator has to say whether there is room."""
        if self.confirm is not None:
            confirmed, self.confirm = self.confirm(self.index), None
            if confirmed is not self:
                return confirmed._allocate_exactly(nbytes, stream, storage)
        self.collect_frees()
        token = self._new_token(nbytes, stream)
        give_back: Callable[[Any], None] = self._note
        given = -token
        if hooks.allocated:
            token = given = Block.of(token, storage)
            # A partial of a partial is one: the token is the last of its arguments.
            record = self._recorder and partial(self._record_free, self._recorder)
            give_back = record or self._dead_blocks.append
        try:
            if not self._place(token):
                return None
            self._taken += size_of(token)
            self.was_used = True
            allocation = Allocation(give_back, given)
        except BaseException:
            self.log.forget()  # which may have a block for what is freed
            raise
        self._make_sure(stream)
        for allocated in hooks.allocated:
            allocated(self.torch_device, token, storage, allocation)
        return allocation

    def _place(self, token: int) -> bool:
        """Whether there is a block for `token` now, by the model of the allocator."""
        if requested_by(token) >= MOST:
            return False
        busy = self._busy_streams()
        if busy:
            self._note((None, busy))
        return self.log.place(token)

    def _busy_streams(self) -> list[int]:
        """Numbers of the streams that sleep."""
        if not self.busy_until:
            return []
        now = clock.current.now()
        return [number for number, moment in self.busy_until.items() if moment > now]

    def sleep_until(self, moment: float, stream: int) -> None:
        """Make a stream sleep at least until a moment of the clock."""
        self.busy_until[stream] = max(moment, self.busy_until.get(stream, 0.0))
        self._enough_for = self._follow_at = -1  # what it uses is not free yet, if one asks

    def _make_sure(self, stream: int) -> None:
        """Note until when a stream may allocate without asking the model.

        Before a stream begins a segment of 2 MiB, its blocks have taken more than 1 MiB of the last
        one that it has begun, counting those that were freed meanwhile; before one of 20 MiB, more
        than 10 MiB; and a block with a segment of its own takes more than half of that. So for
        whatever it takes, it reserves at most twice as much, beyond one begun segment of each kind.
        """
        reserved = self.log.reserved
        left = self.limit - reserved - BEGUN
        asks = self.capacity < LARGE_SEGMENT or self._busy_streams()
        self._enough_for = -1 if asks else self._taken + left // 2
        self._follow_at = min(self._enough_for, self._taken + _FOLLOW_AFTER)
        token = token_of(0, stream, 0)
        self._stream, self._last_token = stream, self._last_token & -NEXT | token

    def has_ample_room(self, nbytes: int) -> bool:
        """Whether the current stream may allocate `nbytes`, in however many blocks, for sure."""
        stream = thread_rows.per_thread.row[self._place_of_stream]
        return self._taken + nbytes <= self._enough_for and stream == self._stream

    def has_room(self, nbytes: int) -> bool:
        """Whether `allocate` would find a block for `nbytes`; nothing is asked, and none is taken.

        Where the answer is no, unused segments have been given back, as for an allocation.
        """
        held = self.hold(nbytes, ask=False)
        if held is None:
            return False
        self.release(held)
        return True

    def hold(self, nbytes: int, ask: bool = True) -> int | None:
        """Take a block for `nbytes`, allocated after a `release` of the result; None if no room."""
        size = nbytes + 511 & -512
        if ask:
            for before in hooks.before_allocate:
                before(self.torch_device, size)
        self.collect_frees()
        stream = thread_rows.per_thread.row[self._place_of_stream]
        token = self._new_token(nbytes, stream)
        may_lack_room = self._taken + size > self._enough_for or stream != self._stream
        if may_lack_room and not self._place(token):
            return None
        self._taken += size
        return token

    def release(self, held: int) -> None:
        """Give back what `hold` took."""
        size = size_of(held)
        self._taken -= size
        self._enough_for -= size
        self._follow_at -= size
        self.log.take_back(held)

    def _ask(self, nbytes: int, storage: torch.UntypedStorage | None) -> None:
        """Call `before_allocate` of the instruments, which may raise.

        Not again for a storage for whose bytes `hold` has called it (`out_of_memory.Charge`).
        """
        if getattr(storage, "_simgpu_asked", None) is hooks.before_allocate:
            storage._simgpu_asked = None  # type: ignore[union-attr]
            return
        for before in hooks.before_allocate:
            before(self.torch_device, nbytes)

    def owns(self, allocation: Allocation) -> bool:
        """Whether an allocation is one of this device."""
        return allocation.func in (self._note, self._dead_blocks.append, self._record_free)

    def call_at_free(self, function: Callable[[int], None] | None) -> None:
        """Call `function(token)` where and when memory dies that is allocated from now on.

        Only while a history is recorded: it is Python code that runs in the middle of anything.
        None ends it.
        """
        self._recorder = function

    def _record_free(self, recorder: Callable[[int], None], block: Block) -> None:
        """How memory dies that was allocated while `recorder` was in force."""
        if recorder is self._recorder:
            recorder(block)
        self._dead_blocks.append(block)

    def collect_frees(self) -> None:
        """Note that blocks were given back, and report it to instruments."""
        dead = self._dead_blocks
        try:
            while dead:
                block = dead[0]
                del dead[0]
                self._note(-block)
                for freed in hooks.freed:
                    freed(self.torch_device, block)
        except IndexError:
            pass  # another thread came first

    @property
    def allocated(self) -> int:
        """Bytes that are taken now."""
        return self.placement().taken

    def live(self) -> set[int]:
        """The tokens of all allocations that live."""
        return {each.token for each in live_objects(Allocation) if self.owns(each)}

    def placement(self) -> CachingAllocator:
        """The segments and blocks that CUDA's caching allocator would have by now."""
        self.collect_frees()
        return self.log.placement()

    def limit_to(self, nbytes: int) -> None:
        """Limit its segments to `nbytes`; those that it has remain."""
        self.placement()  # which follows what has happened so far, with the limit of that time
        self.limit = self.log.limit = nbytes
        self._enough_for = self._follow_at = -1
