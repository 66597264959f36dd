"""How many there are of something, in the words of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def plural(count: int, one: str, many: str = "") -> str:
    """ "1 device", "2 devices"; `many` where that is no `one` with an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def check_one_for_each_device(name: str, entries: Sequence[Any], count: int) -> None:
    """Raise ValueError where a list, the argument `name`, has not one entry for each device."""
    if len(entries) != count:
        raise ValueError(
            f"{name}={list(entries)!r} has {plural(len(entries), 'entry', 'entries')} for "
            f"{plural(count, 'device')}: say one for all of them, or as many as there are devices"
        )
