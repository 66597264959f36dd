"""Tensors that are not contiguous: which of them travel, and that their values stay in place."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu.errors import CollectiveMismatchError
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture(scope="module", autouse=True)
def cuda_devices():
    with simgpu.as_cuda(8) as devices:
        yield devices


def shapes(dims):
    return st.lists(st.integers(1, 3), min_size=dims, max_size=dims).map(tuple)


def brought(rank, shape):
    return torch.arange(torch.Size(shape).numel()).view(shape).float() + 1000 * rank


def last(tensor):
    """The same values on a device, with the channels innermost in memory."""
    return tensor.cuda().contiguous(memory_format=FORMATS[tensor.dim()])


def parts(shape, count):
    return [last(torch.zeros(shape)) for _ in range(count)]


def all_reduce(mine, rank, count):
    dist.all_reduce(mine)
    return [mine], [sum(brought(r, mine.shape) for r in range(count))]


def broadcast(mine, rank, count):
    dist.broadcast(mine, count - 1)
    return [mine], [brought(count - 1, mine.shape)]


def reduce(mine, rank, count):
    dist.reduce(mine, 0)
    return ([mine], [sum(brought(r, mine.shape) for r in range(count))]) if rank == 0 else ([], [])


def all_gather(mine, rank, count):
    outs = parts(mine.shape, count)
    dist.all_gather(outs, mine)
    return outs, [brought(r, mine.shape) for r in range(count)]


def all_gather_into_tensor(mine, rank, count):
    out = last(torch.zeros(count * mine.shape[0], *mine.shape[1:]))
    dist.all_gather_into_tensor(out, mine)
    return [out], [torch.cat([brought(r, mine.shape) for r in range(count)])]


def reduce_scatter(mine, rank, count):
    [out] = parts(mine.shape, 1)
    dist.reduce_scatter(out, [mine + to for to in range(count)])
    return [out], [sum(brought(r, mine.shape) for r in range(count)) + count * rank]


def reduce_scatter_tensor(mine, rank, count):
    [out] = parts(mine.shape, 1)
    dist.reduce_scatter_tensor(out, last(torch.cat([mine + to for to in range(count)])))
    return [out], [sum(brought(r, mine.shape) for r in range(count)) + count * rank]


def all_to_all(mine, rank, count):
    outs = parts(mine.shape, count)
    dist.all_to_all(outs, [mine + to for to in range(count)])
    return outs, [brought(r, mine.shape) + rank for r in range(count)]


def all_to_all_single(mine, rank, count):
    out = last(torch.zeros(count * mine.shape[0], *mine.shape[1:]))
    dist.all_to_all_single(out, last(torch.cat([mine + to for to in range(count)])))
    return [out], [torch.cat([brought(r, mine.shape) + rank for r in range(count)])]


def gather(mine, rank, count):
    outs = parts(mine.shape, count) if rank == 0 else []
    dist.gather(mine, outs or None, 0)
    return outs, [brought(r, mine.shape) for r in range(count)][: len(outs)]


def scatter(mine, rank, count):
    given = [mine + to for to in range(count)] if rank == 0 else None
    [out] = parts(mine.shape, 1)
    dist.scatter(out, given, 0)
    return [out], [brought(0, mine.shape) + rank]


COLLECTIVES = {
    function.__name__: function
    for function in (
        *(all_reduce, broadcast, reduce, all_gather, all_gather_into_tensor, gather, scatter),
        *(reduce_scatter, reduce_scatter_tensor, all_to_all, all_to_all_single),
    )
}


@pytest.mark.parametrize("name", COLLECTIVES)
@few
@given(count=strategies.world_sizes(1, 4), shape=shapes(4) | shapes(5), seed=schedules)
def test_channels_last_travels(name, count, shape, seed):
    """NCCL takes it, and so does whoever sums the gradients of a model in channels_last."""

    def call(rank):
        found, wanted = COLLECTIVES[name](last(brought(rank, shape)), rank, count)
        for tensor, values in zip(found, wanted, strict=True):
            assert torch.equal(tensor.cpu(), values)
            assert tensor.is_contiguous(memory_format=FORMATS[len(shape)])

    simgpu.ranks(count, call, schedule=seed)


@few
@given(shape=st.integers(1, 4).flatmap(shapes), data=st.data(), seed=schedules)
def test_any_dense_tensor_is_sent_to_one_rank(shape, data, seed):
    """As pipelines do with activations that were transposed."""
    order = data.draw(st.permutations(range(len(shape))))

    def exchange(rank):
        x = brought(rank, shape).cuda().permute(order)
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
            assert torch.equal(x.cpu(), brought(0, shape).permute(order))

    simgpu.ranks(2, exchange, schedule=seed)


@few
@given(shape=shapes(3), seed=schedules)
def test_ranks_whose_tensors_lie_otherwise_are_told_so(shape, seed):
    """NCCL would put the values of one into other places of the other, without a word."""
    x = brought(0, shape).transpose(0, 2)
    assume(not x.is_contiguous())

    def exchange(rank):
        mine = x.cuda()
        if rank == 0:
            dist.send(mine, 1)
        else:
            dist.recv(mine.contiguous(), 0)

    with pytest.raises(CollectiveMismatchError, match="in memory by dims"):
        simgpu.ranks(2, exchange, schedule=seed)


@few
@given(shape=shapes(4), seed=schedules)
def test_an_output_that_lies_otherwise_is_refused(shape, seed):
    mine = brought(0, shape).contiguous(memory_format=torch.channels_last)
    assume(not mine.is_contiguous())

    def gather(rank):
        dist.all_gather([torch.zeros(shape, device="cuda") for _ in range(2)], mine.cuda())

    with pytest.raises(ValueError, match="lie alike in memory"):
        simgpu.ranks(2, gather, schedule=seed)


@pytest.mark.parametrize("gaps", [lambda x: x[:, ::2], lambda x: x[:, :1].expand(2, 4)])
def test_what_has_gaps_or_overlaps_is_sent_to_nobody(gaps):
    with pytest.raises(ValueError, match="P2P must be non-overlapping and dense"):
        simgpu.ranks(2, lambda rank: dist.send(gaps(torch.ones(2, 4, device="cuda")), 1 - rank))
