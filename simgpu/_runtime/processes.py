"""Which processes may not use devices: a forked child of a parent that used them; one that exits.

Memory would survive a fork here, so a program that forks after its first tensor on a GPU would
run, and fail on hardware. A forked child may use the CPU, and no device that its parent was using,
as on CUDA. A child forked before its parent did anything with the devices may use them; a spawned
child begins anew.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from types import FrameType

from simgpu._runtime import instruments, world
from simgpu._runtime.frames import current_frames
from simgpu._runtime.instruments import Instrument, Launch

_PATIENCE = 5.0  # seconds that the end of a process waits for an operator in another thread


class _RefuseAfterFork(Instrument):
    """Raises before any device work in a forked child whose parent was using its devices."""

    def before_launch(self, launch: Launch) -> None:
        world.check_fork()


def _in_child() -> None:
    world.disable_after_fork()
    if world.is_in_bad_fork():
        instruments.renew_lock()
        instruments.add(_RefuseAfterFork())


_parked: set[int] = set()


class _ParkOtherThreads(Instrument):
    """Stops for good, without a word, any thread that computes while the interpreter ends."""

    def before_launch(self, launch: Launch) -> None:
        if threading.current_thread() is not threading.main_thread():
            _parked.add(threading.get_ident())
            threading.Event().wait()


def _computes(ident: int, frame: FrameType | None) -> bool:
    """Whether a thread is within an operator of a simulated device."""
    if ident in _parked or ident == threading.main_thread().ident:
        return False
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("simgpu."):
            return True
        frame = frame.f_back
    return False


def _at_exit() -> None:
    """Stop daemon threads that still compute.

    PyTorch takes its registrations back while the interpreter ends, and then the interpreter ends
    such threads wherever they are: within an operator, that is an error on stderr or an abort.
    """
    if world.is_in_bad_fork() or len(current_frames()) == 1:
        return
    instruments.add(_ParkOtherThreads())
    patience = time.monotonic() + _PATIENCE  # of the host, whatever clock the devices have
    while time.monotonic() < patience:
        time.sleep(2 * sys.getswitchinterval())  # time for each to come to its next launch
        if not any(_computes(*thread) for thread in current_frames().items()):
            break


def install() -> None:
    """Let every child that this process forks from now on know, and the end of the process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
    atexit.register(_at_exit)
