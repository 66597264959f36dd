"""How much memory each device has: what callers say, in bytes. Does without torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def _bytes(memory: int | str) -> int:
    """Bytes that a number or a text such as "16GiB" means."""
    if isinstance(memory, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", memory.strip())
        if match is None or match[2] not in _UNITS:
            raise ValueError(
                f"memory={memory!r} must be a number of bytes or a number with one of the units "
                f"{', '.join(unit for unit in _UNITS if unit)}, such as '16GiB'"
            )
        return int(float(match[1]) * _UNITS[match[2]])
    if isinstance(memory, bool) or not isinstance(memory, int):
        raise TypeError(f"memory must be bytes (int) or a text such as '16GiB', got {memory!r}")
    if memory < 0:
        raise ValueError(f"memory={memory} must not be negative")
    return memory


def capacities(count: int, memory: int | str | Sequence[int | str]) -> list[int]:
    """Return the bytes of each device, from what `devices` is told."""
    if isinstance(memory, (bytes, bytearray)) or not isinstance(memory, Sequence | int | str):
        raise TypeError(
            f"memory must be bytes (int), a text or one of these per device, got {memory!r}"
        )
    if isinstance(memory, (int, str)):
        return [_bytes(memory)] * count
    if len(memory) != count:
        raise ValueError(
            f"memory={memory!r} has {len(memory)} entries for {count} devices: say one for all of "
            "them, or as many as there are devices"
        )
    return [_bytes(entry) for entry in memory]
