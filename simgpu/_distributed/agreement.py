"""The error where the ranks of a group ask different things of it, naming both calls and lines.

NCCL hangs, adds what does not belong together, or ends the process; gloo aborts. Here each rank
sees what all others ask before any data moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simgpu._distributed.calls import Call, lies
from simgpu.errors import CollectiveMismatchError

_LIE_ALIKE = (
    "Their tensors have to lie alike in memory, or values come to other places: call .contiguous() "
    "before, or .contiguous(memory_format=torch.channels_last) on all of them"
)


def named(ranks: Sequence[int]) -> str:
    """ "rank 3", or "ranks 0, 1 and 2"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


class Asked(NamedTuple):
    """What one rank asks of its group.

    Attributes:
        agreed: what has to be the same on all ranks.
        shown: that, as a text for errors.
        place: the line that asks.
        device: which GPU of which machine it is; "" for any.
    """

    agreed: str | bytes
    shown: str
    place: str
    device: str = ""

    @classmethod
    def of(cls, call: Call) -> Asked:
        return cls(call.says, call.shown, call.place, call.device)

    @property
    def line(self) -> str:
        return f"{self.shown} at {self.place}"


def check(group: str, number: int, ranks: Sequence[int], asked: Sequence[Asked]) -> None:
    """Raise CollectiveMismatchError unless all ranks ask the same, each on a device of its own.

    Args:
        group, number: the group's name, and which of its calls this is, from 1.
        ranks: the global rank of each member.
        asked: what each member asks.
    """
    first = asked[0].agreed
    if all(each.agreed == first for each in asked):
        _check_devices(group, ranks, [each.device for each in asked])
        return
    kinds: dict[tuple[str | bytes, str, str], list[int]] = {}
    for rank, (agreed, shown, place, _) in zip(ranks, asked, strict=True):
        kinds.setdefault((agreed, shown, place), []).append(rank)
    listed = "; ".join(
        f"{named(members)}: {shown} at {place}" for (_, shown, place), members in kinds.items()
    )
    layouts = {lies(shown) for _, shown, _ in kinds}
    raise CollectiveMismatchError(
        f"call {number} of group {group!r} is not the same on all ranks: {listed}. All ranks of a "
        "group have to make the same calls in the same order"
        + (f". {_LIE_ALIKE}" if len(layouts) > 1 else "")
    )


def _check_devices(group: str, ranks: Sequence[int], devices: Sequence[str]) -> None:
    taken: dict[str, int] = {}
    for rank, device in zip(ranks, devices, strict=True):
        if device and taken.get(device, rank) != rank:  # which may send to itself
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
    asked: Sequence[Asked],
) -> None:
    """Raise CollectiveMismatchError unless each rank sends what the other one awaits, in bytes."""
    for source, row in enumerate(sent):
        for target, nbytes in enumerate(row):
            if nbytes != awaited[target][source]:
                raise CollectiveMismatchError(
                    f"call {number} of group {group!r}: rank {ranks[source]} sends {nbytes} bytes "
                    f"to rank {ranks[target]} ({asked[source].line}), which "
                    f"awaits {awaited[target][source]} ({asked[target].line})"
                )
