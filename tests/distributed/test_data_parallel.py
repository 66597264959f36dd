"""DistributedDataParallel: gradients are those of the whole batch, exactly."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

import dataparallel
import simgpu
from simgpu import strategies
from tests.support.whole_batch import (
    One,
    Two,
    backward,
    equal,
    equal_mean,
    gradients,
    of_whole_batch,
    parallel,
    rows,
)
from tests.support.worlds import few, schedules

pytestmark = [
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.* is deprecated"),
]


OPTIONS = st.fixed_dictionaries(
    {
        "bucket_cap_mb": st.sampled_from([1e-6, 25]),
        "gradient_as_bucket_view": st.booleans(),
    }
)

KINDS = st.sampled_from(
    [{}, {"find_unused_parameters": True}, {"static_graph": True}, {"broadcast_buffers": False}]
)


@few
@given(
    count=strategies.world_sizes(),
    each=st.integers(1, 3),
    options=OPTIONS,
    kind=KINDS,
    seed=st.integers(0, 99),
    schedule=schedules,
    backend=st.sampled_from(["nccl", "gloo", "cpu:gloo,cuda:nccl"]),
)
def test_gradients_are_those_of_the_whole_batch(
    count, each, options, kind, seed, schedule, backend
):
    model, x = One(seed), rows(count * each, seed)
    wanted = of_whole_batch(model, x)

    def train(rank):
        ddp = parallel(model, rank, **options, **kind)
        for _ in range(2):
            ddp.zero_grad()
            backward(ddp, x[rank::count], count)
        return gradients(ddp)

    for found in simgpu.ranks(count, train, backend=backend, schedule=schedule):
        assert equal_mean(found, wanted, count)


@few
@given(
    count=strategies.world_sizes(1, 5),
    steps=st.integers(1, 3),
    options=OPTIONS,
    seed=st.integers(0, 99),
    schedule=schedules,
)
def test_no_sync_accumulates(count, steps, options, seed, schedule):
    model, x = One(seed), rows(count * (steps + 1), seed)
    wanted = of_whole_batch(model, x)

    def accumulate(rank):
        ddp = parallel(model, rank, **options)
        mine = x[rank::count]
        with ddp.no_sync():
            for row in mine[:-1]:
                backward(ddp, row[None], count)
        single = gradients(ddp)
        backward(ddp, mine[-1:], count)
        return single, gradients(ddp)

    for rank, (single, found) in enumerate(simgpu.ranks(count, accumulate, schedule=schedule)):
        own = of_whole_batch(model, x[rank::count][:-1])
        assert equal(single, [gradient * count for gradient in own])
        assert equal(found, wanted)


@few
@given(
    count=strategies.world_sizes(2, 5),
    which=st.lists(st.integers(0, 1), min_size=5, max_size=5),
    options=OPTIONS,
    seed=st.integers(0, 99),
)
def test_layers_that_some_ranks_do_not_use_are_summed_over_the_others(count, which, options, seed):
    model, x = Two(seed), rows(count, seed)
    single = copy.deepcopy(model)
    for rank in range(count):
        single(x[rank : rank + 1], which[rank]).sum().backward()

    def train(rank):
        ddp = parallel(model, rank, find_unused_parameters=True, **options)
        backward(ddp, x[rank : rank + 1], count, which=which[rank])
        return gradients(ddp)

    for found in simgpu.ranks(count, train):
        assert equal(found, gradients(single))


@few
@given(
    count=strategies.world_sizes(1, 5),
    steps=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    initial=st.booleans(),
    seed=st.integers(0, 99),
    schedule=schedules,
)
def test_ranks_with_fewer_inputs_join(count, steps, initial, seed, schedule):
    """Gradients are divided by the number of all ranks, or of those that have not joined."""
    model = One(seed)

    def train(rank):
        ddp, done = parallel(model, rank), 0
        with ddp.join(divide_by_initial_world_size=initial):
            for _ in range(steps[rank]):
                ddp.zero_grad()
                left = sum(done < others for others in steps[:count])
                backward(ddp, rows(1, rank), count if initial else left)
                done += 1
        return done, gradients(ddp)

    found = simgpu.ranks(count, train, schedule=schedule)
    assert [done for done, _ in found] == steps[:count]
    longest = [rank for rank in range(count) if steps[rank] == max(steps[:count])]
    wanted = of_whole_batch(model, torch.cat([rows(1, rank) for rank in longest]))
    assert all(equal(found[rank][1], wanted) for rank in longest)


@few
@given(
    count=strategies.world_sizes(),
    samples=st.integers(1, 30),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_shards_cover_every_sample_once(count, samples, shuffle, drop_last, epoch):
    def shard(rank):
        sampler = DistributedSampler(range(samples), shuffle=shuffle, drop_last=drop_last)
        sampler.set_epoch(epoch)
        return list(sampler)

    shards = simgpu.ranks(count, shard)
    assert len({len(each) for each in shards}) == 1
    drawn = [index for each in shards for index in each]
    extra = len(drawn) - samples
    if drop_last and extra < 0:
        assert len(set(drawn)) == len(drawn) > samples - count
    else:
        assert set(drawn) == set(range(samples))
        assert extra < count  # the last shards are filled up with samples from the front


@few
@given(
    count=strategies.world_sizes(1, 4),
    each=st.integers(1, 3),
    options=OPTIONS,
    seed=st.integers(0, 99),
)
def test_it_is_data_parallel_in_other_words(count, each, options, seed):
    """A mean over processes, times their number, is the sum over devices of one process."""
    model, x = One(seed), rows(count * each, seed)
    devices = [torch.device("cuda", index) for index in range(count)]
    single = dataparallel.DataParallel(copy.deepcopy(model).cuda(0), devices)
    single(x.cuda(0)).sum().backward()

    def train(rank):
        ddp = parallel(model, rank, **options)
        backward(ddp, x.chunk(count)[rank], 1)
        return [gradient * count for gradient in gradients(ddp)]

    exact = count & (count - 1) == 0  # dividing by three is not
    for found in simgpu.ranks(count, train):
        if exact:
            assert equal(found, gradients(single))
        else:
            torch.testing.assert_close(found, gradients(single))
