"""How many there are of something, in the words of a message or a table.

May import: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def plural(count: int, one: str, many: str = "") -> str:
    """ "1 device", "2 devices"; `many` where that is no `one` with an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def format_bytes(number: int) -> str:
    """Bytes as tables show them: "20.00 MiB". Errors have CUDA's own rule (`out_of_memory`)."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number} bytes"


def check_one_for_each_device(name: str, entries: Sequence[Any], count: int) -> None:
    """Raise ValueError where a list, the argument `name`, has not one entry for each device."""
    if len(entries) != count:
        raise ValueError(
            f"{name}={list(entries)!r} has {plural(len(entries), 'entry', 'entries')} for "
            f"{plural(count, 'device')}: say one for all of them, or as many as there are devices"
        )
