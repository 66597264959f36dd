"""Which rank this process is, where a launcher such as torchrun has started several."""

from __future__ import annotations

import os
from collections.abc import Mapping


def rank_and_count(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The rank of a process with this environment, and how many there are; 0 and 1 if it is alone.

    A launcher tells them by RANK and WORLD_SIZE.
    """
    rank, count = int(environment.get("RANK") or 0), int(environment.get("WORLD_SIZE") or 1)
    return rank, max(count, 1)


def heading(environment: Mapping[str, str] = os.environ) -> str:
    """The line that says whose table follows; nothing where the process is alone."""
    rank, count = rank_and_count(environment)
    return f"rank {rank} of {count}\n" if count > 1 else ""
