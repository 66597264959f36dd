"""What each collective means, as calls of all ranks and the outputs that they have to have.

Every transport runs these cases: ranks that are processes or threads all of them, and the backend
"fake" those of one rank.
"""

import functools
from typing import NamedTuple

import torch

from simgpu._distributed.collectives import Call, Reduction

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
REDUCTIONS = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


class World(NamedTuple):
    """What the calls of one case have in common."""

    count: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    root: int
    op: str
    seed: int

    def brought(self, *lengths):
        """Small whole numbers of each rank: their sums and products are exact."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (*lengths, *self.shape)
        return [
            torch.randint(1, 4, shape, generator=generator).to(self.dtype)
            for _ in range(self.count)
        ]

    def empty(self, *lengths):
        return torch.full((*lengths, *self.shape), 7, dtype=self.dtype)

    def reduced(self, parts):
        return functools.reduce(REDUCTIONS[self.op], parts)

    def call(self, kind, ins, outs, **facts):
        """A call of one rank; all ranks have to ask for the same."""
        call = Call(kind, f"{kind} {self}", ins, outs, peer=self.root, **facts)
        call.number, call.place = 1, "train.py:1"
        return call


def barrier(world):
    return [(world.call("barrier", [], []), []) for _ in range(world.count)]


def broadcast(world):
    parts, found = world.brought(), []
    for rank, mine in enumerate(part.clone() for part in parts):
        outs = [] if rank == world.root else [mine]
        found.append((world.call("broadcast", [mine], outs), [parts[world.root]] if outs else []))
    return found


def all_gather(world):
    parts = world.brought()
    return [
        (world.call("all_gather", [mine], [world.empty() for _ in parts]), parts) for mine in parts
    ]


def all_gather_uneven(world):
    parts = [
        torch.full((rank * world.seed % 4,), rank).to(world.dtype) for rank in range(world.count)
    ]
    return [
        (world.call("all_gather", [mine], [torch.empty_like(part) for part in parts]), parts)
        for mine in parts
    ]


def all_gather_in_place(world):
    """Each rank's own part is where it will be."""
    found = []
    for rank, mine in enumerate(world.brought()):
        outs = list(world.empty(world.count).unbind())
        outs[rank].copy_(mine)
        found.append((world.call("all_gather", [outs[rank]], outs), world.brought()))
    return found


def gather(world):
    parts = world.brought()
    found = []
    for rank, mine in enumerate(parts):
        outs = [world.empty() for _ in parts] if rank == world.root else []
        found.append((world.call("gather", [mine], outs), parts if outs else []))
    return found


def scatter(world):
    parts = world.brought()
    return [
        (world.call("scatter", parts if rank == world.root else [], [world.empty()]), [part])
        for rank, part in enumerate(parts)
    ]


def all_to_all(world):
    parts = world.brought(world.count)
    found = []
    for rank, mine in enumerate(parts):
        outs = [world.empty() for _ in parts]
        call = world.call("all_to_all", list(mine.unbind()), outs)
        found.append((call, [part[rank] for part in parts]))
    return found


def all_to_all_uneven(world):
    """Rows of other lengths for each pair, some of them none."""
    generator = torch.Generator().manual_seed(world.seed)
    sizes = torch.randint(0, 3, (world.count, world.count), generator=generator).tolist()
    sent = [
        [torch.full((size,), 4 * rank + to).to(world.dtype) for to, size in enumerate(row)]
        for rank, row in enumerate(sizes)
    ]
    found = []
    for rank, mine in enumerate(sent):
        wanted = [row[rank] for row in sent]
        outs = [torch.empty_like(each) for each in wanted]
        found.append((world.call("all_to_all", mine, outs, has_splits=True), wanted))
    return found


def all_reduce(world):
    parts, reduction = world.brought(), Reduction(world.op)
    total = world.reduced(parts)
    return [
        (world.call("all_reduce", [mine], [mine], reduction=reduction), [total])
        for mine in [part.clone() for part in parts]
    ]


def reduce(world):
    parts, reduction = world.brought(), Reduction(world.op)
    total, found = world.reduced(parts), []
    for rank, mine in enumerate(part.clone() for part in parts):
        outs = [mine] if rank == world.root else []
        call = world.call("reduce", [mine], outs, reduction=reduction)
        found.append((call, [total] if outs else []))
    return found


def reduce_scatter(world):
    parts, reduction = world.brought(world.count), Reduction(world.op)
    found = []
    for rank, mine in enumerate(parts):
        call = world.call(
            "reduce_scatter", list(mine.unbind()), [world.empty()], reduction=reduction
        )
        found.append((call, [world.reduced([part[rank] for part in parts])]))
    return found


CASES = (
    barrier,
    broadcast,
    all_gather,
    all_gather_uneven,
    all_gather_in_place,
    gather,
    scatter,
    all_to_all,
    all_to_all_uneven,
    all_reduce,
    reduce,
    reduce_scatter,
)


def send_and_recv(world):
    """Rank 0 sends to the last rank, which may be itself; the other ranks make no call."""
    [mine, *_], last = world.brought(), world.count - 1
    send, recv = world.call("send", [mine], []), world.call("recv", [], [world.empty()])
    send.peer, recv.peer, send.says = last, 0, recv.says
    return [(send, []), (recv, [mine])]


# Calls that do not go together: what has to be an error of all ranks, in one text.


def other_text(world):
    """The last rank asks for something else."""
    calls = [call for call, _ in all_reduce(world)]
    calls[-1].says = calls[-1].shown = "broadcast"
    calls[-1].place = "other.py:2"
    return calls


def other_device(world):
    """All ranks are on one device."""
    calls = [call for call, _ in all_reduce(world)]
    for call in calls:
        call.device = "machine:0"
    return calls


def other_splits(world):
    """Rank 0 sends the last rank more than that one awaits."""
    calls = [call for call, _ in all_to_all(world)]
    calls[0].ins[-1] = world.empty(2).flatten()
    return calls


MISTAKES = (other_text, other_device, other_splits)
