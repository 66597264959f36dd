"""How the workers of pytest-xdist share the real GPUs of a machine: plain arithmetic.

GPUs come in groups of `size` neighbours, worker w has group w modulo the number of groups. GPUs
that fill no group stay idle; where there are more workers than groups, some share one.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_SIZE = 2


@dataclass(frozen=True)
class Worker:
    """One of `count` processes."""

    index: int
    count: int


@dataclass(frozen=True)
class Group:
    """The GPUs of a worker, and how many workers use them."""

    ordinals: range
    sharers: int


def group_of(worker: Worker, gpus: int, size: int) -> Group:
    """Return the GPUs of a worker on a machine with `gpus` of them, `size` in a group."""
    groups = gpus // size
    mine = worker.index % groups
    sharers = len(range(mine, worker.count, groups))
    return Group(range(mine * size, (mine + 1) * size), sharers)


def describe(workers: int, gpus: int, size: int) -> str:
    """Return what the header line says of the workers, with a notice where they have to share."""
    groups = gpus // size
    each = f"{workers} workers, each with {size} of them"
    if workers <= groups:
        return each
    most = group_of(Worker(0, workers), gpus, size).sharers
    are = "there is only 1 such group" if groups == 1 else f"there are only {groups} such groups"
    return (
        f"{each}; as {are}, up to {most} workers share one, and each has 1/{most} of its memory "
        f"(-n {groups} shares nothing)"
    )
