"""`Tensor.record_stream`: which allocation a tensor stands on, for the model of the allocator.

A tensor of a device does not know its allocation. A table of them would cost each allocation of
each program, so it is made at the first call of `record_stream` and kept up from then on, by an
instrument, until the devices end.
"""

from __future__ import annotations

import weakref

import torch

from simgpu._runtime import streams, world
from simgpu._runtime.allocations import Allocation
from simgpu._runtime.by_address import ByAddress
from simgpu._runtime.instruments import Instrument, add, remove
from simgpu._runtime.tracked_objects import newest_first


class _Owned:
    """Memory of one allocation."""

    __slots__ = ("allocation", "begin", "end")

    def __init__(self, storage: torch.UntypedStorage, allocation: Allocation) -> None:
        self.begin = storage.data_ptr()
        self.end = self.begin + storage.nbytes()
        self.allocation = weakref.ref(allocation)


class _Uses(Instrument):
    """The allocations that live, by address; an address may be that of one that has died."""

    def __init__(self) -> None:
        self._owned: ByAddress[_Owned] = ByAddress()
        self._count, self._sweep_at = 0, 1024
        for tensor in newest_first(torch.Tensor):
            allocation = vars(tensor).get("_simgpu_allocation")
            if allocation is not None:
                self._put(tensor.untyped_storage(), allocation)

    def _put(self, storage: torch.UntypedStorage, allocation: Allocation) -> None:
        owned = _Owned(storage, allocation)
        for dead in self._owned.overlapping(owned.begin, owned.end):
            self._owned.remove(dead)
        self._owned.put(owned)

    def memory_owned(self, index: int, storage: torch.UntypedStorage, allocation: object) -> None:
        """There is a new allocation."""
        self._count += 1
        if self._count > self._sweep_at:
            live = [owned for owned in self._owned if owned.allocation() is not None]
            self._owned.clear()
            for owned in live:
                self._owned.put(owned)
            self._count, self._sweep_at = len(live), 2 * len(live) + 1024
        assert isinstance(allocation, Allocation), "so `Device.allocate` says"
        self._put(storage, allocation)

    def note(self, address: int, stream: torch.Stream) -> None:
        """The memory at an address is used by a stream."""
        owned = self._owned.at(address)
        allocation = None if owned is None else owned.allocation()
        if allocation is None:
            return
        (token,) = allocation.args
        for device in world.active_devices:
            if device.owns(allocation):
                index, number = streams.key_of(stream)
                own = index == device.index  # among its own, numbers do; handles are larger
                device.note_use(token, number if own else streams.handle_of(index, number))

    def devices_removed(self) -> None:
        global _uses
        remove(self)
        _uses = None


_uses: _Uses | None = None


def note_use(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """Let the memory of a tensor be free, when it is dropped, once `stream` is done."""
    global _uses
    if _uses is None:
        _uses = _Uses()
        add(_uses)
    _uses.note(tensor.data_ptr(), stream)
