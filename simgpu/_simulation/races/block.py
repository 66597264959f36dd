"""`simgpu.races()`: a list of accesses to the same memory that nothing puts in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from simgpu._runtime import instruments
from simgpu._simulation.races.detector import Detector
from simgpu._simulation.races.report import Race


@contextmanager
def races() -> Iterator[list[Race]]:
    """Find races between streams, and between a stream and the host, within the block.

    Yields a list of reports, empty where all is in order, to which each pair of lines is added once
    when its second access is asked for. It need not happen: that nothing orders the two is enough.
    Followed are all kernels and copies of all threads; of the CPU's operators, those of the calling
    thread on pinned memory, once devices and the host use such memory at the same time. What numpy
    or C++ code does with memory that it was given earlier is not seen.
    """
    found: list[Race] = []
    detector = Detector(found)
    instruments.add(detector)
    try:
        with detector.host:
            yield found
    finally:
        instruments.remove(detector)
