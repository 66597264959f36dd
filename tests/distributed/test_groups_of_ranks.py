"""The groups that ranks in threads make: default ones after each other, and parts of a world."""

import gc
import os
import weakref
from unittest import mock

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu._distributed.collectives import Call
from simgpu.errors import CollectiveMismatchError, DeadlockError
from tests.support import rank_cases
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")


@few
@given(sizes=st.lists(st.integers(1, 2), min_size=2, max_size=3), seed=schedules)
def test_groups_of_one_name_with_other_ranks_stay_apart(sizes, seed):
    """Each rank makes the group that it is in, and no other: all of them are the first ones."""
    ends = numpy.cumsum(sizes).tolist()
    parts = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]

    def add(rank):
        [mine] = [part for part in parts if rank in part]
        group = dist.new_group(mine)
        x = torch.full((2,), rank + 1.0, device="cuda")
        dist.all_reduce(x, group=group)
        return group.group_name, x.tolist()

    names, sums = zip(*simgpu.ranks(ends[-1], add, schedule=seed), strict=True)
    assert len(set(names)) == 1
    assert list(sums) == [[sum(part) + float(len(part))] * 2 for part in parts for _ in part]


HOWS = {
    "nothing": lambda rank, count: {},
    "env": lambda rank, count: {"init_method": "env://"},
    "numbers": lambda rank, count: {"rank": rank, "world_size": count},
    "tcp": lambda rank, count: {
        "init_method": "tcp://localhost:29500",
        "rank": rank,
        "world_size": count,
    },
    "store": lambda rank, count: {
        "store": dist.TCPStore("localhost", 29501, count, rank == 0),
        "rank": rank,
        "world_size": count,
    },
}


@few
@given(
    count=strategies.world_sizes(2, 4),
    hows=st.lists(st.sampled_from(sorted(HOWS)), min_size=1, max_size=3),
    seed=schedules,
)
def test_default_groups_follow_each_other(count, hows, seed):
    """What was sent in one, and taken by nobody, is not found in the next, and told at the end."""
    ended = []

    def again(rank):
        for how in hows:
            if rank == 0:  # which nobody meets
                dist.isend(torch.ones(1, device="cuda"), 1)
            dist.destroy_process_group()
            dist.init_process_group("nccl", **HOWS[how](rank, count))
            store = dist.distributed_c10d._get_default_store()
            if rank == 0:
                assert store.get("told") == b"by rank 1"
            elif rank == 1:
                assert not store.check(["told"])
                store.set("told", "by rank 1")
            received = torch.zeros(1, device="cuda")
            if rank == 0:
                dist.send(torch.full((1,), 7.0, device="cuda"), 1)
            elif rank == 1:
                dist.recv(received, 0)
                assert received.item() == 7
        ended.append(rank)

    with pytest.raises(CollectiveMismatchError, match=r"to rank 1 .* ended without its recv"):
        simgpu.ranks(count, again, schedule=seed)
    assert sorted(ended) == list(range(count))


@few
@given(count=strategies.world_sizes(2, 3), often=st.integers(2, 5), late=st.booleans())
def test_finished_calls_are_forgotten(count, often, late):
    calls = weakref.WeakSet()  # of this world: other tests keep calls of theirs

    def work(rank):
        x = torch.ones(2, device="cuda")
        for _ in range(often):
            for call in (dist.all_reduce(x, async_op=late), dist.broadcast(x, 0, async_op=late)):
                if late:
                    call.wait()
            call = dist.isend(x, (rank + 1) % count)
            dist.recv(x.clone(), (rank - 1) % count)
            call.wait()
        del call
        dist.barrier(device_ids=[rank])
        gc.collect()
        return len(calls)

    def complete(call, complete=Call.__post_init__):
        complete(call)
        calls.add(call)

    with mock.patch.object(Call, "__post_init__", complete):
        held = simgpu.ranks(count, work)[0]
    # What each rank's last call of each kind has left, and not the calls before.
    assert 0 < held <= 5 * count


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({}, r"rank 0 waits for 2 ranks at the store tcp://localhost:0; rank 1 has ended"),
        ({"store": dist.HashStore(), "rank": 0, "world_size": 2}, "last_worker' in a store"),
    ],
)
def test_group_made_by_one_rank_is_a_deadlock(how, text):
    def make(rank):
        if rank == 0:
            dist.destroy_process_group()
            dist.init_process_group("nccl", **how)

    barrier = mock.patch.dict(os.environ, TORCH_DIST_INIT_BARRIER="1")
    with barrier, pytest.raises(DeadlockError, match=text):
        simgpu.ranks(2, make)


@few
@given(current=st.permutations(range(4)), members=st.sampled_from([[0, 1, 2], [1, 2]]))
def test_monitored_barrier_waits_on_the_current_device(current, members):
    come = []

    def call(rank):
        group = dist.new_group(members, backend="gloo")
        torch.cuda.set_device(current[rank])
        if rank in members:
            come.append(rank)
            dist.monitored_barrier(group)
            assert sorted(come) == members

    with simgpu.trace() as trace:
        simgpu.ranks(3, call)
    found = [record.collective for record in trace if record.op.startswith("c10d.monitored")]
    assert {about.rank: about.index for about in found} == {rank: current[rank] for rank in members}


def test_monitored_barrier_names_missing_ranks():
    def call(rank):
        group = dist.new_group(backend="gloo")
        if rank != 1:
            dist.monitored_barrier(group)

    with pytest.raises(
        DeadlockError, match=r"rank 0 waits for monitored_barrier.*rank 1 has ended"
    ):
        simgpu.ranks(3, call)


# What registers each name of NCCL; releases before 2.14 have only the first.
NAMES = {
    "nccl": "ProcessGroup",
    "nccl2": "_register_builtin_nccl2_backend",
    "nccl-lazy": "_register_builtin_nccl_lazy_backend",
    "nccl-legacy": "_register_builtin_nccl_legacy_backend",
}
NAMES = [name for name, maker in NAMES.items() if hasattr(dist.distributed_c10d, maker)]


@pytest.mark.parametrize("name", NAMES)
def test_each_backend_of_nccl_has_its_rules(name):
    def add(rank):
        group, x = dist.new_group([0, 1], backend=name), torch.ones(2, device="cuda")
        dist.all_reduce(x, group=group)
        with pytest.raises(ValueError, match=r"Cannot use ReduceOp\.BOR with NCCL"):
            dist.all_reduce(x.int(), dist.ReduceOp.BOR, group=group)
        return x.tolist()

    assert simgpu.ranks(2, add) == [[2.0, 2.0]] * 2


SIZE = 4


def bind(rank):
    """Older releases split only groups of one device."""
    dist.group.WORLD.bound_device_id = torch.device("cuda", rank)


def parts_of(assigned):
    """Which positions are in each part, of the number of a part for each; 0 is none."""
    numbers = sorted(set(assigned) - {0})
    return [[k for k, number in enumerate(assigned) if number == part] for part in numbers]


ASSIGNED = st.lists(st.integers(0, 2), min_size=SIZE, max_size=SIZE).filter(any)


@few
@given(
    first=ASSIGNED,
    second=ASSIGNED,
    others=st.integers(0, SIZE - 1),
    backend=st.sampled_from(["nccl", "cpu:gloo,cuda:nccl"]),
    seed=schedules,
)
def test_parts_of_a_group_sum_their_own_ranks(first, second, others, backend, seed):
    """In parts of parts too, and where ranks know other numbers of groups."""
    parts = parts_of(first)
    within = parts_of(second[: len(parts[0])]) or [[0]]

    def split(rank):
        bind(rank)
        if rank == others:
            dist.new_group([rank], use_local_synchronization=True)
        return rank_cases.parts_of_a_group(rank, parts, within)

    for text in simgpu.ranks(SIZE, split, backend=backend, schedule=seed):
        assert text == "Cannot use ReduceOp.BOR with NCCL"
