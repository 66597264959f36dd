"""What each thread has of its own: current device, current stream on each device, accelerator.

They are one row of numbers, always in the same place for a thread. PyTorch's C++ code reads and
writes the row as well, where `simgpu._native.guard_code` could give it the address of the row: its
engine makes devices and streams current without running any Python code.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable

from simgpu._util.interrupts import CallAtEnd
from simgpu._util.naming import MAX_DEVICES

# Places in a row.
CURRENT_DEVICE = 0
LOG = 1  # address of where waits of the engine are noted (`streams`), 0 while there is no log
STREAMS = 2  # and those that follow, one for each device: the number of its current stream
ACCELERATOR = STREAMS + MAX_DEVICES  # of a backward pass or call that the thread is in
_LENGTH = ACCELERATOR + 1

# What a row says of the accelerator: nothing, that it is CUDA, that it is the simulated devices.
NEITHER, CUDA, SIMULATED = 0, 1, 2

# What an entry of a log says: an event was recorded on a stream, a stream waits for an event, a
# stream uses memory. A log is: how many entries there were, room for how many, and the entries,
# each four numbers (what it says, an event or address, the bits of a device, a stream's number).
RECORDED, WAITS, USES = 1, 2, 3

Row = array  # of "q", 64 bits each

_ZEROS = array("q", bytes(8 * MAX_DEVICES))
_rows: list[Row[int]] = []  # of all threads, and never freed: C++ may hold the address of one
_unused: list[Row[int]] = []  # of threads that are gone


_announce: Callable[[int], None] | None = None


class _PerThread(threading.local):
    """The calling thread's row, made when the thread first asks."""

    def __init__(self) -> None:
        try:
            row = _unused.pop()
        except IndexError:
            row = array("q", bytes(8 * _LENGTH))
            _rows.append(row)
        row[CURRENT_DEVICE] = row[LOG] = row[ACCELERATOR] = 0
        row[STREAMS:ACCELERATOR] = _ZEROS
        self.row = row
        self._give_back = CallAtEnd(_unused.append, row)
        if _announce is not None:
            _announce(row.buffer_info()[0])


per_thread = _PerThread()


def announce_to(announce: Callable[[int], None]) -> None:
    """Call `announce` with the address of each thread's row, in that thread, from now on.

    All threads begin with new rows, so this is done before there are devices.
    """
    global _announce, per_thread
    _announce = announce
    per_thread = _PerThread()


def reset() -> None:
    """Reset each thread to the first device and to default streams."""
    for row in _rows:
        row[CURRENT_DEVICE] = 0
        row[STREAMS:ACCELERATOR] = _ZEROS
