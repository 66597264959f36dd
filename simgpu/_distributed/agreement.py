"""The error where the ranks of a group ask different things of it, naming both calls and lines.

NCCL hangs, adds what does not belong together, or ends the process; gloo aborts. Here each rank
sees what all others ask before any data moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from simgpu.errors import CollectiveMismatchError


def named(ranks: Sequence[int]) -> str:
    """ "rank 3", or "ranks 0, 1 and 2"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def check(
    group: str, number: int, ranks: Sequence[int], asked: Sequence[tuple[str, str, str]]
) -> None:
    """Raise CollectiveMismatchError unless all ranks ask the same, each on a device of its own.

    Args:
        group, number: the group's name, and which of its calls this is, from 1.
        ranks: the global rank of each member.
        asked: for each member what it asks, the line that asked, and its device ("" for any).
    """
    first = asked[0][0]
    if all(says == first for says, _, _ in asked):
        _check_devices(group, ranks, [device for _, _, device in asked])
        return
    kinds: dict[tuple[str, str], list[int]] = {}
    for rank, (says, place, _) in zip(ranks, asked, strict=True):
        kinds.setdefault((says, place), []).append(rank)
    listed = "; ".join(
        f"{named(members)}: {says} at {place}" for (says, place), members in kinds.items()
    )
    raise CollectiveMismatchError(
        f"call {number} of group {group!r} is not the same on all ranks: {listed}. All ranks of a "
        "group have to make the same calls in the same order"
    )


def _check_devices(group: str, ranks: Sequence[int], devices: Sequence[str]) -> None:
    taken: dict[str, int] = {}
    for rank, device in zip(ranks, devices, strict=True):
        if device and device in taken:
            raise CollectiveMismatchError(
                f"Duplicate GPU detected : rank {rank} and rank {taken[device]} both on CUDA "
                f"device {device.rpartition(':')[2]} (group {group!r}). Each rank of a group of "
                "nccl needs a device of its own: call torch.cuda.set_device(local_rank) first"
            )
        taken[device] = rank


def check_splits(
    group: str,
    number: int,
    ranks: Sequence[int],
    sent: Sequence[Sequence[int]],
    awaited: Sequence[Sequence[int]],
    asked: Sequence[tuple[str, str]],
) -> None:
    """Raise CollectiveMismatchError unless each rank sends what the other one awaits, in bytes."""
    for source, row in enumerate(sent):
        for target, nbytes in enumerate(row):
            if nbytes != awaited[target][source]:
                raise CollectiveMismatchError(
                    f"call {number} of group {group!r}: rank {ranks[source]} sends {nbytes} bytes "
                    f"to rank {ranks[target]} ({asked[source][0]} at {asked[source][1]}), which "
                    f"awaits {awaited[target][source]} ({asked[target][0]} at {asked[target][1]})"
                )
