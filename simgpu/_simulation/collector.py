"""A block in which Python's garbage collector does not run by itself.

It begins by how many objects the whole process has made, on which neither sweeps nor schedules may
depend.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """What dies by counting references alone dies within; cycles stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
