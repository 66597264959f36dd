"""How much memory each device has: what callers say, in bytes. Does without torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simgpu._counting import check_one_for_each_device

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_NEGATIVE = "memory={} must not be negative: say what each device has, such as '16GiB'"


def _bytes(memory: int | str) -> int:
    """Bytes that a number or a text such as "16GiB" means."""
    if isinstance(memory, str):
        match = re.fullmatch(r"(-?)(\d+(?:\.\d+)?)\s*([A-Za-z]*)", memory.strip())
        if match is None or match[3] not in _UNITS:
            raise ValueError(
                f"memory={memory!r} must be a number of bytes or a number with one of the units "
                f"{', '.join(unit for unit in _UNITS if unit)}, such as '16GiB'"
            )
        if match[1]:
            raise ValueError(_NEGATIVE.format(repr(memory)))
        return int(float(match[2]) * _UNITS[match[3]])
    if isinstance(memory, bool) or not isinstance(memory, int):
        raise TypeError(f"memory must be bytes (int) or a text such as '16GiB', got {memory!r}")
    if memory < 0:
        raise ValueError(_NEGATIVE.format(memory))
    return memory


def capacities(count: int, memory: int | str | Sequence[int | str]) -> list[int]:
    """Return the bytes of each device, from what `devices` is told."""
    if isinstance(memory, (bytes, bytearray)) or not isinstance(memory, Sequence | int | str):
        raise TypeError(
            f"memory must be bytes (int), a text or one of these per device, got {memory!r}"
        )
    if isinstance(memory, (int, str)):
        return [_bytes(memory)] * count
    check_one_for_each_device("memory", memory, count)
    return [_bytes(entry) for entry in memory]


def process_capacities(count: int, memory: str | Sequence[str]) -> list[int]:
    """Return the bytes of each device of a process, which is to have something on all of them."""
    sizes = capacities(count, memory)
    if not all(sizes):
        raise ValueError(
            f"memory={memory!r} leaves a process a device on which it can put nothing: say what "
            "each has, such as '16GiB'; a block of simgpu.devices(memory=0) may have none"
        )
    return sizes
