"""Where every thread of the process stands, asked without the risk of waiting for oneself."""

from __future__ import annotations

import gc
import sys
import threading
from types import FrameType


def current_frames() -> dict[int, FrameType]:
    """The frame that each thread runs, by the thread's identifier; its own is that of the caller.

    Python up to 3.11.8 makes them under a lock of the interpreter. Should the garbage collector run
    meanwhile, and find a `threading.local`, it waits for that same lock for ever (python/cpython
    issue 106883), so it does not run meanwhile.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return {**sys._current_frames(), threading.get_ident(): sys._getframe(1)}
    finally:
        if collects:
            gc.enable()
