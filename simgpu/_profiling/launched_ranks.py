"""Which rank this process is, where a launcher such as torchrun has started several."""

from __future__ import annotations

from collections.abc import Mapping


def rank_and_count(environment: Mapping[str, str]) -> tuple[int, int]:
    """The rank of a process with this environment, and how many there are; 0 and 1 if it is alone.

    A launcher tells them by RANK and WORLD_SIZE. Where these are no number and a larger one, no
    launcher has set them.
    """
    told = environment.get("RANK") or "0", environment.get("WORLD_SIZE") or "1"
    if not all(text.isdecimal() for text in told):
        return 0, 1
    rank, count = map(int, told)
    return (rank, count) if rank < count else (0, 1)


def heading(environment: Mapping[str, str]) -> str:
    """The line that says whose table follows; nothing where the process is alone."""
    rank, count = rank_and_count(environment)
    return f"rank {rank} of {count}\n" if count > 1 else ""
