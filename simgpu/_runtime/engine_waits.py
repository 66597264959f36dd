"""Tell instruments which streams autograd's engine lets wait for each other in a backward pass.

Where a gradient passes from one stream to another, the engine records an event on the first, lets
the second wait for it, and tells the allocator that the second uses the memory. It does so in C++
and calls our device guard, which writes each of these calls into a log of the calling thread
(`simgpu._native.guard_answers`). `tell` reads that log and calls the instruments: before the next
kernel of the thread, and after the backward pass. While no instrument overrides one of these
methods, there is no log.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager

from simgpu._runtime import events, streams, thread_state, world
from simgpu._runtime.instruments import hooks
from simgpu._runtime.thread_state import LOG

_RECORDED, _USES = 1, 3  # what an entry says; 2 is a wait
_ROOM = 4096  # entries between two kernels


class EngineEvent(events.Event):
    """An event that autograd's engine recorded: it is passed as a program's would be."""


class _Log:
    """The log of one backward pass: how many entries, room for how many, and the entries."""

    def __init__(self) -> None:
        self.entries = array("q", bytes(8 * (2 + 4 * _ROOM)))
        self.entries[1] = _ROOM
        self.address = self.entries.buffer_info()[0]
        self.events: dict[int, EngineEvent] = {}

    def tell(self) -> None:
        """Tell the instruments of all entries, oldest first."""
        entries = self.entries
        count, entries[0] = entries[0], 0
        if count > _ROOM:
            raise RuntimeError(
                f"autograd let streams wait {count} times between two kernels of a backward pass, "
                f"of which {_ROOM} could be followed"
            )
        for at in range(2, 2 + 4 * count, 4):
            kind, handle, device, number = entries[at : at + 4]
            index = device >> 8
            if index < len(world.active_devices):  # else it has outlived its device
                self._tell(kind, handle, streams.Stream(index, stream_id=number))

    def _tell(self, kind: int, handle: int, stream: streams.Stream) -> None:
        if kind == _USES:
            for used in hooks.memory_used_on_stream:
                used(handle, stream)
            return
        event = self.events.get(handle)
        if event is None:
            event = self.events[handle] = EngineEvent()
        if kind == _RECORDED:
            event.record(stream)
        else:
            event.wait(stream)


_logs: dict[int, _Log] = {}


@contextmanager
def followed() -> Iterator[None]:
    """Within the block, which passes backward in this thread, let instruments know of waits."""
    row = thread_state.per_thread.row
    if row[LOG] or not (hooks.stream_waits or hooks.event_recorded or hooks.memory_used_on_stream):
        yield
        return
    log = _Log()
    _logs[log.address] = log
    row[LOG] = log.address
    try:
        yield
        log.tell()
    finally:
        row[LOG] = 0
        del _logs[log.address]
        for passed in hooks.backward_passed:
            passed()


def tell() -> None:
    """Tell of what the calling thread's backward pass has ordered until now, if it is in one."""
    address = thread_state.per_thread.row[LOG]
    if address:
        _logs[address].tell()
