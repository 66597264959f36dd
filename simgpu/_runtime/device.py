"""One simulated GPU: how many bytes of its memory are taken, its generator, its streams.

The count of its memory is called the ledger: bytes that are allocated, freed, and the most at once.
The memory itself is that of CPU tensors; `simgpu._memory` says which belong to a device.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable

import torch

from simgpu._models.gpus import GENERIC, Model
from simgpu._naming import DEVICE_TYPE
from simgpu._random.geometry import resident_threads
from simgpu._runtime.caching_allocator import CachingAllocator
from simgpu._runtime.event_log import EventLog
from simgpu._runtime.instruments import hooks
from simgpu._runtime.random import make_generator
from simgpu._runtime.tracked_objects import newest_first


class Allocation(functools.partial[None]):
    """Bytes of a device that are taken for as long as this object lives; made by `Device.allocate`.

    It hangs on the host tensor that owns a simulated tensor's memory, so it dies exactly when the
    last tensor, view or autograd node over that memory does. It is a call to be made then, all of
    it in C: a Python function would let the handler of a signal (Ctrl-C) run, and an error that it
    raises while an object dies is lost, together with the bytes.
    """

    __slots__ = ()
    __del__ = functools.partial.__call__


class Block(int):
    """The bytes of one allocation, as a number that can be told from all others.

    `Device.allocate` makes one where instruments see allocations, and hands them the same object
    when it is given back.
    """

    address: int  # of the storage, 0 where none is known
    requested: int  # bytes before they were rounded up


class _ToldFree:
    """How memory dies that is allocated while a history is recorded, which is told of it."""

    __slots__ = ("_function", "device")

    def __init__(self, device: Device, function: Callable[[int], None]) -> None:
        self.device = device
        self._function = function

    def __call__(self, nbytes: int) -> None:
        if self.device._give_back is self:
            self._function(nbytes)
        self.device._count_later(nbytes)


class Device:
    """One simulated GPU: its memory ledger, its random stream and the streams made on it."""

    __slots__ = (
        "_count_later",
        "_give_back",
        "_note",
        "_pending_frees",
        "background_stream",
        "busy_until",
        "cache_releases",
        "capacity",
        "freed",
        "freed_count",
        "generator",
        "index",
        "limit",
        "log",
        "model",
        "out_of_memory_count",
        "peak",
        "resident_threads",
        "taken",
        "taken_count",
        "torch_device",
    )

    def __init__(
        self, index: int, capacity: int, model: Model = GENERIC, rng: str = "cuda"
    ) -> None:
        self.index = index
        self.model = model
        self.torch_device = torch.device(DEVICE_TYPE, index)
        # The ledger: bytes and allocations taken and given back ever, and the most bytes at once.
        self.capacity = self.limit = capacity
        self.taken = self.freed = self.peak = 0
        self.taken_count = self.freed_count = 0
        self.out_of_memory_count = 0
        self.cache_releases = 0  # calls of `empty_cache`
        # What was taken and given back, in this order.
        self.log = EventLog()
        self._note = self.log.note
        # Sizes of allocations that have died and are not counted as given back yet.
        self._pending_frees: deque[int] = deque()
        self._count_later = self._pending_frees.append
        self._give_back: Callable[[int], None] = self._count_later
        self.background_stream: torch.Stream | None = None
        # By number of a stream, the moment until which it sleeps (`sleeping.sleep`): work itself
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

        `storage` is whose they are: instruments are told its address and exact size.
        """
        nbytes = (nbytes + 511) & -512  # of a block; and a number object that is no other's
        if hooks.before_allocate:
            self._ask(nbytes, storage)
        if self._pending_frees:
            self.collect_frees()
        allocated = self.taken - self.freed + nbytes
        if allocated > self.limit:  # asked here: the answer and the entry below are one step
            return None
        if allocated > self.peak:
            self.peak = allocated
        self.taken += nbytes
        self.taken_count += 1
        if hooks.allocations:
            return self._allocated_watched(nbytes, storage)
        allocation = Allocation(self._give_back, nbytes)
        self._note(nbytes)
        return allocation

    def _ask(self, nbytes: int, storage: torch.UntypedStorage | None) -> None:
        """Ask the instruments, unless `hold` has done so for this very storage."""
        if getattr(storage, "_simgpu_asked", None) is hooks.before_allocate:
            storage._simgpu_asked = None  # type: ignore[union-attr]
            return
        for before in hooks.before_allocate:
            before(self.torch_device, nbytes)

    def hold(self, nbytes: int) -> bool:
        """Take a block for `nbytes`, allocated after a `release`; False if it has no room."""
        for before in hooks.before_allocate:
            before(self.torch_device, nbytes)
        if self._pending_frees:
            self.collect_frees()
        if self.taken - self.freed + nbytes > self.limit:
            return False
        self.taken += nbytes
        return True

    def release(self, nbytes: int) -> None:
        """Give back what `hold` took."""
        self.taken -= nbytes

    def _allocated_watched(self, nbytes: int, storage: torch.UntypedStorage | None) -> Allocation:
        """What has been entered, told to the instruments with its address and exact size."""
        block = Block(nbytes)
        block.address = 0 if storage is None else storage.data_ptr()
        block.requested = nbytes if storage is None else storage.nbytes()
        allocation = Allocation(self._give_back, block)
        self._note(block)
        for after in hooks.after_allocate:
            after(self.torch_device, block)
        if storage is not None and nbytes:
            for owned in hooks.memory_owned:
                owned(self.index, storage, allocation)
        return allocation

    def owns(self, allocation: Allocation) -> bool:
        """Whether an allocation is one of this device."""
        func = allocation.func
        return func == self._count_later or (isinstance(func, _ToldFree) and func.device is self)

    def call_at_free(self, function: Callable[[int], None] | None) -> None:
        """Call `function(nbytes)` where and when memory dies that is allocated from now on.

        Only while a history is recorded: it is Python code that runs in the middle of anything.
        None ends it.
        """
        self._give_back = self._count_later if function is None else _ToldFree(self, function)

    def collect_frees(self) -> None:
        """Count what has died as given back."""
        dead = self._pending_frees
        try:
            while dead:
                nbytes = dead[0]
                self.freed += nbytes
                self.freed_count += 1
                del dead[0]
                self._note((nbytes,))
                for after in hooks.after_free:
                    after(self.torch_device, nbytes)
        except IndexError:
            pass  # another thread came first

    @property
    def allocated(self) -> int:
        """Bytes that are taken now."""
        self.collect_frees()
        return self.taken - self.freed

    def live(self) -> list[int]:
        """The bytes of every allocation that lives: the objects that `allocate` was given."""
        self.collect_frees()
        found = {id(each): each for each in newest_first(Allocation) if self.owns(each)}
        return [each.args[0] for each in found.values()]

    @property
    def live_count(self) -> int:
        """How many allocations live."""
        self.collect_frees()
        return self.taken_count - self.freed_count

    def placement(self) -> CachingAllocator:
        """The segments and blocks that CUDA's caching allocator would have by now."""
        self.collect_frees()
        return self.log.placement(self)
