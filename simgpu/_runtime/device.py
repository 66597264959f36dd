"""One simulated GPU: how many bytes of its memory are taken, its generator, its streams.

The count of its memory is called the ledger: bytes that are allocated, freed, and the most at once.
The memory itself is that of CPU tensors; `simgpu._memory` says which belong to a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from simgpu._models.gpus import GENERIC, Model
from simgpu._naming import DEVICE_TYPE
from simgpu._runtime.instruments import hooks
from simgpu._runtime.random import Generator


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


class Device:
    """One simulated GPU: its memory ledger, its random stream and the streams made on it."""

    __slots__ = (
        "_count_later",
        "_give_back",
        "_pending_frees",
        "background_stream",
        "busy_until",
        "cache_releases",
        "capacity",
        "freed",
        "freed_before",
        "freed_count",
        "freed_count_before",
        "generator",
        "index",
        "limit",
        "model",
        "out_of_memory_count",
        "peak",
        "peak_count",
        "taken",
        "taken_before",
        "taken_count",
        "taken_count_before",
        "torch_device",
    )

    def __init__(self, index: int, capacity: int, model: Model = GENERIC) -> None:
        self.index = index
        self.model = model
        self.torch_device = torch.device(DEVICE_TYPE, index)
        # The ledger, in bytes and in numbers of allocations: taken and given back ever, the same
        # at the last reset, and the most at once.
        self.capacity = self.limit = capacity
        self.taken = self.freed = self.taken_before = self.freed_before = self.peak = 0
        self.taken_count = self.freed_count = self.peak_count = 0
        self.taken_count_before = self.freed_count_before = 0
        self.out_of_memory_count = 0
        self.cache_releases = 0  # calls of `empty_cache`: there is no cache
        # Sizes of allocations that have died and are not counted as given back yet.
        self._pending_frees: list[int] = []
        self._count_later = self._pending_frees.append
        self._give_back: Callable[[int], None] = self._count_later
        self.background_stream: torch.Stream | None = None
        # By number of a stream, the moment until which it sleeps (`streams.sleep`): work itself
        # is done as soon as it is asked for.
        self.busy_until: dict[int, float] = {}
        # As on CUDA, where a seed set before the devices wake up reaches them when they do.
        self.generator = Generator(index).manual_seed(torch.initial_seed())

    # No locks below, since memory is given back in the middle of anything. With the GIL, threads
    # are switched and signals handled where a function begins, a call returns or a loop starts
    # over, so neither happens between two lines that do nothing of that kind.

    def allocate(
        self, nbytes: int, storage: torch.UntypedStorage | None = None
    ) -> Allocation | None:
        """Enter `nbytes` in the ledger, until the result dies; None if there is no room.

        `storage` is whose they are: instruments are told its address and exact size.
        """
        if hooks.before_allocate:
            for before in hooks.before_allocate:
                before(self.torch_device, nbytes)
        if self._pending_frees:
            self.collect_frees()
        allocated = self.taken - self.freed + nbytes
        count = self.taken_count - self.freed_count + 1
        if allocated > self.limit:  # asked here: the answer and the entry below are one step
            return None
        if allocated > self.peak:
            self.peak = allocated
        if count > self.peak_count:
            self.peak_count = count
        self.taken += nbytes
        self.taken_count += 1
        if hooks.after_allocate:
            return self._allocated_watched(nbytes, storage)
        return Allocation(self._give_back, nbytes)

    def _allocated_watched(self, nbytes: int, storage: torch.UntypedStorage | None) -> Allocation:
        """What has been entered, told to the instruments with its address and exact size."""
        block = Block(nbytes)
        block.address = 0 if storage is None else storage.data_ptr()
        block.requested = nbytes if storage is None else storage.nbytes()
        allocation = Allocation(self._give_back, block)
        for after in hooks.after_allocate:
            after(self.torch_device, block)
        return allocation

    def owns(self, allocation: Allocation) -> bool:
        """Whether an allocation is one of this device."""
        return allocation.func in (self._give_back, self._count_later)

    def call_at_free(self, function: Callable[[int], None] | None) -> None:
        """Call `function(nbytes)` where and when memory dies that is allocated from now on.

        Only while a history is recorded: it is Python code that runs in the middle of anything.
        None ends it.
        """

        def give_back(nbytes: int) -> None:
            if function is not None and self._give_back is give_back:
                function(nbytes)
            self._count_later(nbytes)

        self._give_back = self._count_later if function is None else give_back

    def collect_frees(self) -> None:
        """Count what has died as given back."""
        dead = self._pending_frees
        try:
            while dead:
                nbytes = dead[-1]
                self.freed += nbytes
                self.freed_count += 1
                del dead[-1]
                for after in hooks.after_free:
                    after(self.torch_device, nbytes)
        except IndexError:
            pass  # another thread came first

    @property
    def allocated(self) -> int:
        """Bytes that are taken now."""
        self.collect_frees()
        return self.taken - self.freed

    @property
    def count(self) -> int:
        """How many allocations there are now."""
        self.collect_frees()
        return self.taken_count - self.freed_count


def format_bytes(number: int) -> str:
    """Bytes as CUDA's messages write them: "20.00 MiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number} bytes"
