"""`split_group`, where ranks are threads: each part adds its own, by the rules of the whole."""

import copy
from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import simgpu
from tests.support.worlds import few, schedules

COUNT = 4


@pytest.fixture(scope="module", autouse=True)
def cuda_devices():
    with simgpu.as_cuda(COUNT) as devices:
        yield devices


def bind(rank):
    """Older releases split only groups of one device."""
    dist.group.WORLD.bound_device_id = torch.device("cuda", rank)


def parts_of(assigned):
    """Which positions are in each part, of the number of a part for each; 0 is none."""
    numbers = sorted(set(assigned) - {0})
    return [[k for k, number in enumerate(assigned) if number == part] for part in numbers]


ASSIGNED = st.lists(st.integers(0, 2), min_size=COUNT, max_size=COUNT).filter(any)


@few
@given(
    first=ASSIGNED,
    second=ASSIGNED,
    often=st.integers(1, 2),
    others=st.integers(0, COUNT - 1),
    backend=st.sampled_from(["nccl", "cpu:gloo,cuda:nccl"]),
    seed=schedules,
)
def test_each_part_of_a_group_adds_its_own(first, second, often, others, backend, seed):
    """In parts of parts too, and where ranks know other numbers of groups."""

    def add(whole, members, positions, rank):
        part = dist.split_group(whole, positions)
        mine = next((p for p in positions if members.index(rank) in p), None)
        if mine is None:
            assert part in (None, dist.GroupMember.NON_GROUP_MEMBER)
            return None, []
        mine = [members[position] for position in mine]
        for device in ("cuda", "cpu") if "gloo" in backend else ("cuda",):
            x = torch.full((2,), rank + 1, device=device)
            dist.all_reduce(x, group=part)
            assert x.tolist() == [sum(mine) + len(mine)] * 2
        assert dist.get_process_group_ranks(part) == mine
        with pytest.raises(ValueError, match=r"Cannot use ReduceOp\.BOR with NCCL"):
            dist.all_reduce(torch.ones(1, device="cuda").int(), dist.ReduceOp.BOR, group=part)
        return part, mine

    def split(rank):
        bind(rank)
        if rank == others:
            dist.new_group([rank], use_local_synchronization=True)
        for _ in range(often):
            part, members = add(None, list(range(COUNT)), parts_of(first), rank)
            positions = parts_of(second[: len(members)])
            if positions:
                add(part, members, positions, rank)

    simgpu.ranks(COUNT, split, backend=backend, schedule=seed)


@few
@given(members=st.sets(st.integers(0, COUNT - 1), min_size=1), seed=schedules)
def test_a_new_group_in_a_world_of_bound_devices_has_the_ranks_that_were_asked_for(members, seed):
    def add(rank):
        bind(rank)
        group = dist.new_group(sorted(members))
        x = torch.full((2,), rank + 1, device="cuda")
        if rank in members:
            dist.all_reduce(x, group=group)
        return x.tolist()

    for rank, found in enumerate(simgpu.ranks(COUNT, add, schedule=seed)):
        wanted = sum(members) + len(members) if rank in members else rank + 1
        assert found == [wanted] * 2


@few
@given(bound=st.booleans(), flat=st.booleans(), seed=schedules)
def test_the_dims_of_a_mesh_are_groups(bound, flat, seed):
    shape = (COUNT,) if flat else (2, COUNT // 2)

    def add(rank):
        if bound:
            bind(rank)
        mesh = init_device_mesh("cuda", shape)
        x = torch.full((1,), rank + 1, device="cuda")
        for dim in range(len(shape)):
            dist.all_reduce(x, group=mesh.get_group(dim))
        return x.item()

    assert simgpu.ranks(COUNT, add, schedule=seed) == [sum(range(1, COUNT + 1))] * COUNT


def test_options_of_a_group_are_copied():
    """As `split_group` of older releases does."""

    def change(rank):
        options = dist.group.WORLD._get_backend(torch.device("cuda")).options
        copied, before = copy.deepcopy(options), options._timeout
        assert copied._timeout == before
        copied._timeout = before + timedelta(seconds=1)
        assert options._timeout == before

    simgpu.ranks(1, change)
