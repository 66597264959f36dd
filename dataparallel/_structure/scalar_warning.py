"""The warning about 0-dimensional outputs, given once for each line of a program."""

from __future__ import annotations

import sys
import warnings

_warned_lines: set[tuple[str, int]] = set()


def warn_of_scalars() -> None:
    """Warn at the first time that a line of the caller's makes a vector of 0-dim outputs."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and _internal(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    line = (frame.f_code.co_filename, frame.f_lineno)
    if line in _warned_lines:
        return
    _warned_lines.add(line)
    warnings.warn(
        "every replica returned a 0-dimensional tensor; the result is a vector of one element for "
        "each replica, so its length depends on the number of chunks. Reduce it (for example with "
        ".mean()) or return one value for each row",
        UserWarning,
        stacklevel=level,
    )


def _internal(name: str) -> bool:
    return name.partition(".")[0] in ("dataparallel", "torch")
