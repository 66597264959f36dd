"""`simgpu.ranks`: worlds of ranks in threads, what goes wrong in them, and what is left behind."""

import gc
import os
import random
import re
import sys
import threading
from unittest import mock

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu.errors import CollectiveMismatchError, DeadlockError, SimGPUError
from tests.support import rank_cases
from tests.support.worlds import few, schedules

BACKENDS = ("nccl", "gloo", "cpu:gloo,cuda:nccl")


@pytest.fixture(scope="module", autouse=True)
def cuda_devices():
    with simgpu.as_cuda(8) as devices:
        yield devices


@few
@given(count=strategies.world_sizes(), seed=schedules)
def test_each_rank_knows_itself(count, seed):
    def rank_of_torchrun(rank):
        assert dist.get_rank() == rank == int(os.environ["RANK"]) == torch.cuda.current_device()
        assert dist.get_world_size() == count == int(os.environ["WORLD_SIZE"])
        dist.barrier(device_ids=[rank])
        assert os.environ["LOCAL_RANK"] == str(rank)
        return rank

    assert simgpu.ranks(count, rank_of_torchrun, schedule=seed) == list(range(count))


@few
@given(count=strategies.world_sizes(2, 5), seed=st.integers(0, 99))
def test_a_seed_gives_the_same_order_and_numbers(count, seed):
    def once():
        order = []

        def draw(rank):
            numbers = [torch.rand(1).item(), random.random(), numpy.random.rand()]
            for _ in range(3):
                order.append(rank)
                dist.barrier(device_ids=[rank])
                numbers += [torch.rand(1).item(), random.random(), numpy.random.rand()]
            return numbers

        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        return simgpu.ranks(count, draw, schedule=seed), order

    (numbers, order), again = once(), once()
    assert (numbers, order) == again
    assert all(each == numbers[0] for each in numbers)  # each rank's are its own, of one seed


@few
@given(
    count=strategies.world_sizes(2, 3),
    draws=st.lists(st.sampled_from([numpy.random.rand, numpy.random.randn]), max_size=5),
    kind=st.sampled_from([numpy.random.MT19937, numpy.random.PCG64]),
)
def test_what_numpy_draws_goes_on_where_it_was(count, draws, kind):
    """Also the second of two normal numbers, which NumPy makes at once and keeps."""

    def draw(rank):
        numbers = []
        for function in draws:
            numbers.append(function())
            dist.barrier(device_ids=[rank])
        return numbers

    before = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(kind(1))
    try:
        numpy.random.randn()
        generator = numpy.random.get_bit_generator()
        seen = simgpu.ranks(count, draw)
        assert numpy.random.get_bit_generator() is generator
        assert seen == [[function() for function in draws]] * count
    finally:
        numpy.random.set_bit_generator(before)


@few
@given(sizes=st.lists(st.integers(1, 2), min_size=2, max_size=3), seed=schedules)
def test_groups_of_other_ranks_that_have_one_name_do_not_meet(sizes, seed):
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


@few
@given(count=strategies.world_sizes(), seed=schedules)
def test_the_future_of_a_call_has_its_sums(count, seed):
    def sums(rank):
        call = dist.all_reduce(torch.full((3,), rank + 1.0, device="cuda"), async_op=True)
        return call.get_future().then(lambda done: done.value()[0].tolist()).wait()

    total = count * (count + 1) / 2
    assert simgpu.ranks(count, sums, schedule=seed) == [[total] * 3] * count


def test_seeds_give_different_orders():
    def order_of(seed):
        order = []

        def meet(rank):
            for _ in range(3):
                order.append(rank)
                dist.barrier(device_ids=[rank])

        simgpu.ranks(3, meet, schedule=seed)
        return tuple(order)

    assert len({order_of(seed) for seed in range(8)}) > 4


@few
@given(count=strategies.world_sizes(2, 5), data=st.data(), seed=schedules)
def test_a_rank_that_leaves_early_is_a_deadlock(count, data, seed):
    left = data.draw(st.integers(0, count - 1))

    def leave(rank):
        dist.barrier(device_ids=[rank])
        if rank != left:
            dist.all_reduce(torch.ones(3, device="cuda"))

    with pytest.raises(DeadlockError) as raised:
        simgpu.ranks(count, leave, schedule=seed)
    text = str(raised.value)
    assert f"rank {left} has ended" in text
    for rank in set(range(count)) - {left}:
        waits = rf"rank {rank} waits for all_reduce float32 \(3,\) SUM at .*test_ranks.py:\d+"
        assert re.search(waits, text), text


def test_a_circle_of_receives_is_a_deadlock():
    def receive(rank):
        dist.recv(torch.ones(1, device="cuda"), (rank + 1) % 3)

    with pytest.raises(DeadlockError, match="rank 2 waits for send and recv of float32"):
        simgpu.ranks(3, receive)


@pytest.mark.parametrize("seed", [None, 1])
def test_ranks_that_differ_are_all_told_so(seed):
    for told in simgpu.ranks(2, rank_cases.every_mistake, schedule=seed):
        for name, text in told.items():
            assert text.startswith("CollectiveMismatchError"), (name, text)
            assert "rank 0" in text, text
            assert "rank 1" in text, text
            assert text.count("rank_cases.py:") == 2, text


@few
@given(count=strategies.world_sizes(2, 5), data=st.data(), seed=schedules)
def test_the_first_failure_is_raised_with_what_became_of_the_others(count, data, seed):
    failing = data.draw(st.integers(0, count - 1))

    def fail(rank):
        dist.barrier(device_ids=[rank])
        if rank == failing:
            raise KeyError("of one rank")
        dist.all_reduce(torch.ones(3, device="cuda"))

    with pytest.raises(KeyError, match="of one rank") as raised:
        simgpu.ranks(count, fail, schedule=seed)
    if hasattr(raised.value, "__notes__"):
        told, why, *_ = raised.value.__notes__
        assert told == f"raised by rank {failing} of {count}"
        assert f"rank {failing} has raised KeyError" in why
        assert f"rank {(failing + 1) % count} waits for all_reduce" in why


def test_two_ranks_on_one_device_are_refused():
    def forget(rank):
        torch.cuda.set_device(0)
        dist.all_reduce(torch.ones(1, device="cuda"))

    with pytest.raises(CollectiveMismatchError, match=r"Duplicate GPU .* rank 1 and rank 0 both"):
        simgpu.ranks(2, forget)


@few
@given(seed=schedules)
def test_a_read_before_the_wait_sees_no_number(seed):
    def read(rank):
        x = torch.full((2,), rank + 1.0, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        early = x.tolist()
        work.wait()
        return early, x.tolist()

    for early, late in simgpu.ranks(3, read, schedule=seed):
        assert all(number != number for number in early)
        assert late == [6.0, 6.0]


def test_outputs_are_there_after_a_synchronization():
    def synchronize(rank):
        x = torch.ones(2, device="cuda")
        dist.all_reduce(x, async_op=True)
        torch.cuda.synchronize()
        return x.tolist()

    assert simgpu.ranks(2, synchronize) == [[2.0, 2.0]] * 2


def test_a_wait_for_the_last_call_is_one_for_those_before():
    def wait_once(rank):
        first, last = torch.ones(2, device="cuda"), torch.ones(2, device="cuda")
        dist.all_reduce(first, async_op=True)
        dist.all_reduce(last, async_op=True).wait()
        return first.tolist()

    assert simgpu.ranks(2, wait_once) == [[2.0, 2.0]] * 2


@few
@given(
    count=strategies.world_sizes(1, 3),
    used=st.booleans(),
    how=st.sampled_from(["aborted", "destroyed"]),
)
def test_a_group_that_has_ended_makes_no_calls(count, used, how):
    """The others go on, and so does the world."""
    end = {
        "aborted": vars(dist.distributed_c10d)["_abort_process_group"],
        "destroyed": dist.destroy_process_group,
    }[how]

    def use(rank):
        x = torch.ones(2, device="cuda")
        ended, other = (dist.new_group(range(count)) for _ in range(2))
        if used:
            dist.all_reduce(x, group=ended)
        end(ended)
        with pytest.raises((SimGPUError, ValueError)) as raised:
            dist.all_reduce(x, group=ended)
        # PyTorch's logger fails over it, as it does not know the group any more.
        error = raised.value.__context__ or raised.value
        assert re.search(rf"all_reduce .*test_ranks.py:\d+.*was {how}", str(error)), error
        dist.all_reduce(x, group=other)
        dist.all_reduce(x)
        return x.tolist()

    total = count ** (2 + used)
    assert simgpu.ranks(count, use) == [[total, total]] * count


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
        return rank

    assert simgpu.ranks(count, again, schedule=seed) == list(range(count))


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({}, r"rank 0 waits for 2 ranks at the store tcp://localhost:0; rank 1 has ended"),
        ({"store": dist.HashStore(), "rank": 0, "world_size": 2}, "last_worker' in a store"),
    ],
)
def test_a_group_that_others_do_not_make_is_a_deadlock(how, text):
    def make(rank):
        if rank == 0:
            dist.destroy_process_group()
            dist.init_process_group("nccl", **how)

    barrier = mock.patch.dict(os.environ, TORCH_DIST_INIT_BARRIER="1")
    with barrier, pytest.raises(DeadlockError, match=text):
        simgpu.ranks(2, make)


def test_too_few_devices_and_worlds_within_worlds_are_refused():
    with pytest.raises(ValueError, match="9 ranks need 9 devices"):
        simgpu.ranks(9, lambda rank: None)
    with pytest.raises(ValueError, match="from 1 on, got 0"):
        simgpu.ranks(0, lambda rank: None)
    with pytest.raises(RuntimeError, match="rank 0 of a world cannot start another"):
        simgpu.ranks(1, lambda rank: simgpu.ranks(1, lambda rank: None))


def left_behind():
    """What a world might leave: threads, groups, environment, memory of devices, generators."""
    gc.collect()
    return (
        threading.active_count(),
        dist.is_initialized(),
        [os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR")],
        [torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())],
        random.getstate(),
        torch.get_rng_state().tolist(),
        dist.ProcessGroupGloo,
        vars(dist.distributed_c10d)["_world"],
        sys.excepthook,
    )


@few
@given(count=strategies.world_sizes(), seed=schedules, fails=st.booleans())
def test_nothing_is_left_behind(count, seed, fails):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"):
        os.environ.pop(name, None)  # whoever may have left it
    before = left_behind()

    def use(rank):
        x = torch.rand(100, device="cuda") + random.random() + torch.rand(1).item()
        work = dist.all_reduce(x, async_op=True)
        if not fails or rank:
            work.wait()
        dist.new_group([0])
        if fails and not rank:
            raise SimGPUError("on purpose")

    if fails:
        with pytest.raises(SimGPUError):
            simgpu.ranks(count, use, schedule=seed)
    else:
        simgpu.ranks(count, use, schedule=seed)
    assert left_behind() == before


@few
@given(count=strategies.world_sizes(1, 4), seed=schedules, backend=st.sampled_from(BACKENDS))
def test_tensors_of_the_cpu_travel_where_the_group_has_gloo(count, seed, backend):
    def sums(rank):
        host, device = (torch.full((2,), rank + 1.0, device=where) for where in ("cpu", "cuda"))
        parts = [torch.zeros(1, dtype=torch.int64) for _ in range(count)]
        dist.all_reduce(device)
        dist.all_reduce(host)
        dist.all_gather(parts, torch.tensor([rank]))
        assert host.is_cpu
        assert host.tolist() == device.tolist() == [count * (count + 1) / 2] * 2
        return [part.item() for part in parts]

    if backend == "nccl":
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            simgpu.ranks(count, sums, backend=backend, schedule=seed)
    else:
        assert (
            simgpu.ranks(count, sums, backend=backend, schedule=seed)
            == [list(range(count))] * count
        )


def count_up(**how):
    """Two ranks count in a variable that both have, with a kernel between reading and writing."""
    total = [0]

    def add(rank):
        before = total[0]
        torch.ones(1, device="cuda").add_(1)
        total[0] = before + 1
        dist.barrier(device_ids=[rank])
        assert total[0] == 2

    simgpu.ranks(2, add, **how)


def test_a_schedule_switches_ranks_at_kernels_and_a_token_repeats_it():
    count_up()  # one after the other
    (token,) = simgpu.schedules(count_up, 150, state=[]).tokens
    for _ in range(3):
        with pytest.raises(AssertionError):
            count_up(schedule=token)
        with pytest.raises(AssertionError), simgpu.schedule(replay=token):
            count_up()
    with pytest.raises(ValueError, match="is no token"):
        count_up(schedule="first")
    with pytest.raises(ValueError, match="seed=-1"):
        count_up(schedule=-1)


def test_a_lock_cycle_of_ranks_is_told_with_their_lines():
    def program():
        one, other = threading.Lock(), threading.Lock()

        def take(rank):
            with (one, other)[rank]:
                torch.ones(1, device="cuda")
                with (other, one)[rank]:
                    pass

        simgpu.ranks(2, take)

    before = left_behind()
    report = simgpu.schedules(program, 150, state=[])
    assert isinstance(report.runs[-1].error, DeadlockError)
    assert "(rank 1) waits for a lock that thread" in str(report.runs[-1].error)
    del report
    assert left_behind() == before


@pytest.mark.parametrize("seed", [None, 1])
def test_ranks_that_meet_again_and_again_are_no_livelock(seed, monkeypatch):
    """Each call is progress, also where nothing runs on a device."""
    for name, steps in (("QUANTUM", 20), ("TURNS", 100), ("MAX_IDLE", 100)):
        monkeypatch.setattr(f"simgpu._simulation.schedules.baton.{name}", steps)

    def meet(rank):
        total = torch.ones(1)
        for _ in range(60):
            dist.all_reduce(total, op=dist.ReduceOp.MAX)
        return total.item()

    assert simgpu.ranks(2, meet, backend="gloo", schedule=seed) == [1.0, 1.0]


@pytest.mark.parametrize("seed", range(3))
def test_threads_that_a_rank_starts_are_of_its_rank(seed):
    """In a schedule, where they take turns with those of other ranks."""

    def start(rank):
        found = []

        def work():
            for _ in range(3):
                torch.ones(1, device=f"cuda:{rank}")
                found.append(os.environ["RANK"])

        thread = threading.Thread(target=work)
        thread.start()
        dist.barrier(device_ids=[rank])
        thread.join()
        return found

    assert simgpu.ranks(2, start, schedule=seed) == [["0"] * 3, ["1"] * 3]


@pytest.mark.ranks(3)
def test_the_fixture_has_as_many_ranks_as_its_marker_says(ranks):
    assert ranks(lambda rank: dist.get_world_size(), backend="cpu:gloo,cuda:nccl") == [3, 3, 3]
