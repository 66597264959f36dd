"""Who is asked for by a number: the root of a call, and the peers of sends and receives."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu.errors import CollectiveMismatchError
from tests.support.worlds import few, schedules

SIZE = 3

pytestmark = pytest.mark.usefixtures("eight_devices")


def gather(x, root):
    outs = [torch.empty_like(x) for _ in range(SIZE)] if dist.get_rank() == root else None
    dist.gather(x, outs, root)


def scatter(x, root):
    parts = [torch.ones_like(x) for _ in range(SIZE)] if dist.get_rank() == root else None
    dist.scatter(x, parts, root)


ROOTED = {"broadcast": dist.broadcast, "gather": gather, "reduce": dist.reduce, "scatter": scatter}


@pytest.mark.parametrize("name", ROOTED)
@few
@given(roots=st.lists(st.integers(0, SIZE - 1), min_size=SIZE, max_size=SIZE), seed=schedules)
def test_differing_roots_raise(name, roots, seed):
    def call(rank):
        ROOTED[name](torch.ones(2, device="cuda"), roots[rank])

    if len(set(roots)) == 1:
        simgpu.ranks(SIZE, call, schedule=seed)
        return
    with pytest.raises(CollectiveMismatchError, match=rf"rank.*: {name} of float32|{name} float32"):
        simgpu.ranks(SIZE, call, schedule=seed)


@few
@given(count=strategies.world_sizes(2, 5), data=st.data(), seed=schedules)
def test_all_that_a_batch_receives_is_there(count, data, seed):
    """From every other rank, whatever the order in which sends and receives are listed."""
    orders = [data.draw(st.permutations(range(2 * (count - 1)))) for _ in range(count)]

    def exchange(rank):
        others = [other for other in range(count) if other != rank]
        outs = {other: torch.zeros(2, device="cuda") for other in others}
        steps = [dist.P2POp(dist.irecv, outs[other], other) for other in others]
        for other in others:
            x = torch.full((2,), 10.0 * rank + other, device="cuda")
            steps.append(dist.P2POp(dist.isend, x, other))
        for work in dist.batch_isend_irecv([steps[position] for position in orders[rank]]):
            work.wait()
        return {other: out.tolist() for other, out in outs.items()}

    for rank, found in enumerate(simgpu.ranks(count, exchange, schedule=seed)):
        assert found == {
            other: [10.0 * other + rank] * 2 for other in range(count) if other != rank
        }


@few
@given(count=strategies.world_sizes(3, 5), data=st.data(), seed=schedules)
def test_peer_of_a_send_is_reported_by_global_rank(count, data, seed):
    """In a part of a group, too, where it has another number: as it has in the least example."""
    members = sorted(data.draw(st.permutations(range(count)))[-data.draw(st.integers(2, count)) :])
    source, target = data.draw(st.permutations(members))[:2]

    def exchange(rank):
        group = dist.new_group(members)
        x = torch.ones(2, device="cuda")
        if rank == source:
            dist.send(x, target, group=group)
        elif rank == target:
            dist.recv(x, source, group=group)

    with simgpu.trace() as trace:
        simgpu.ranks(count, exchange, schedule=seed)
    seen = [each.collective for each in trace if each.collective is not None]
    between = {(each.rank, each.peer, each.sends) for each in seen if each.peer is not None}
    assert between == {(source, target, True), (target, source, False)}
