"""Who is asked for by a number: the root of a call, and the peers of sends and receives."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu.errors import CollectiveMismatchError
from tests.support import collectives
from tests.support.worlds import few, schedules

SIZE = 3

pytestmark = pytest.mark.usefixtures("eight_devices")


@pytest.mark.parametrize("name", ["broadcast", "gather", "reduce", "scatter"])
@few
@given(roots=st.lists(st.integers(0, SIZE - 1), min_size=SIZE, max_size=SIZE), seed=schedules)
def test_differing_roots_raise(name, roots, seed):
    def call(rank):
        parts = collectives.brought(SIZE, (2,), torch.float32, 0)
        collectives.begin(name, parts, roots[rank])

    if len(set(roots)) == 1:
        simgpu.ranks(SIZE, call, schedule=seed)
        return
    with pytest.raises(CollectiveMismatchError, match=rf"rank.*: {name} of float32|{name} float32"):
        simgpu.ranks(SIZE, call, schedule=seed)


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
