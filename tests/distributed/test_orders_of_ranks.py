"""The order in which ranks in threads go on, the numbers they draw, and what they leave behind."""

import gc
import os
import random
import sys
import threading

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu.errors import DeadlockError, SimGPUError
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")


def order_of(seed):
    """In which order three ranks come to barriers."""
    order = []

    def meet(rank):
        for _ in range(3):
            order.append(rank)
            dist.barrier(device_ids=[rank])

    simgpu.ranks(3, meet, schedule=seed)
    return order


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
    orders = {tuple(order_of(seed)) for seed in range(8)}
    assert len(orders) > 4


@few
@given(
    count=strategies.world_sizes(2, 3),
    draws=st.lists(st.sampled_from([numpy.random.rand, numpy.random.randn]), max_size=5),
    kind=st.sampled_from([numpy.random.MT19937, numpy.random.PCG64]),
)
def test_numpy_generator_of_a_rank_continues(count, draws, kind):
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
@given(count=strategies.world_sizes(1, 3), legacy=st.booleans())
def test_rank_restores_state_of_numpy(count, legacy):
    def draw(rank):
        noted = numpy.random.get_state(legacy=legacy)
        numbers = [numpy.random.rand()]
        dist.barrier(device_ids=[rank])
        numpy.random.set_state(noted)
        return [*numbers, numpy.random.rand()]

    for first, second in simgpu.ranks(count, draw):
        assert first == second


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
def test_world_leaves_nothing_behind(count, seed, fails):
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


def test_lock_cycle_of_ranks_is_reported_with_lines():
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
def test_repeated_collectives_are_no_livelock(seed, monkeypatch):
    """Each call is progress, also where nothing runs on a device."""
    for name, steps in (("QUANTUM", 20), ("TURNS", 100), ("MAX_IDLE", 100)):
        monkeypatch.setattr(f"simgpu._explore.schedules.scheduler.{name}", steps)

    def meet(rank):
        total = torch.ones(1)
        for _ in range(60):
            dist.all_reduce(total, op=dist.ReduceOp.MAX)
        return total.item()

    assert simgpu.ranks(2, meet, backend="gloo", schedule=seed) == [1.0, 1.0]
