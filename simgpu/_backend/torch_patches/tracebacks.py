"""Tracebacks that end a program or are kept as text: without the frames of simgpu.

A kernel refuses a call in files that the author of the program does not know; CUDA's errors end at
the line of the program, and so do these. With `SIMGPU_FULL_TRACE=1` all frames are shown.
`simgpu._pytest.tracebacks` does the same for pytest.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from simgpu._util.frames import hide_own_frames, program_line
from simgpu._util.naming import FULL_TRACE, variable_is_set
from simgpu._util.patching import Patches, Table
from simgpu.errors import CollectiveMismatchError

PATCHES = Table()


@PATCHES.around(
    "torch._utils.ExceptionWrapper.__init__",
    why="the traceback of a replica or a worker of DataLoader ends at a line of the program",
)
def _for_another_thread(
    stock: Callable[..., Any], self: Any, exc_info: Any = None, *args: Any, **kwargs: Any
) -> None:
    """`ExceptionWrapper.__init__`, which makes the text that another thread or process raises."""
    kind, error, traceback = sys.exc_info() if exc_info is None else exc_info
    if error is not None and not variable_is_set(FULL_TRACE):
        hide_own_frames(error)
        traceback = error.__traceback__
    stock(self, (kind, error, traceback), *args, **kwargs)


@PATCHES.action(
    "`sys.excepthook`: calls the one that was there",
    why="the traceback of a program that ends by an error has no frames of simgpu",
)
def _wrap_excepthook(_: Patches) -> None:
    hook = sys.excepthook

    @functools.wraps(hook)
    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if not variable_is_set(FULL_TRACE):
            hide_own_frames(error)
            traceback = error.__traceback__
            if isinstance(error, CollectiveMismatchError) and error.reported_by is not None:
                where, what = program_line(error), str(error).partition(":")[0]
                first = f"see the traceback of rank {error.reported_by}"
                print(f"{kind.__name__} at {where}: {what} ({first})", file=sys.stderr)
                return
        hook(kind, error, traceback)

    sys.excepthook = report
