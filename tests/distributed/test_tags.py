"""Tags of messages: gloo pairs the sends and receives of one tag, NCCL all of them in order."""

from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu._distributed import process_transport
from simgpu._distributed.collectives import Call
from simgpu._distributed.works import Pending
from simgpu.errors import SimGPUError
from tests.support.threads import together
from tests.support.worlds import few, schedules

# Tags of messages in the order of their sends, and the order in which they are asked for.
messages = st.lists(st.integers(0, 2), min_size=1, max_size=5).flatmap(
    lambda tags: st.tuples(st.just(tags), st.permutations(tags))
)


def paired(sent, asked):
    """The number of the send that each receive is for, by tag."""
    waiting = {tag: iter([n for n, each in enumerate(sent) if each == tag]) for tag in {*sent}}
    return [next(waiting[tag]) for tag in asked]


@few
@given(
    drawn=messages,
    backend=st.sampled_from(["gloo", "nccl"]),
    itself=st.booleans(),
    seed=schedules,
)
def test_thread_ranks_pair_messages_by_their_backend(drawn, backend, itself, seed):
    sent, asked = drawn
    device = "cpu" if backend == "gloo" else "cuda"

    def exchange(rank):
        works, found = [], []
        if rank == 0:
            target = 0 if itself else 1
            data = [torch.full((2,), float(number), device=device) for number in range(len(sent))]
            works += [dist.isend(x, target, tag=tag) for x, tag in zip(data, sent, strict=True)]
        if rank == (0 if itself else 1):
            found = [torch.full((2,), -1.0, device=device) for _ in asked]
            works += [dist.irecv(x, 0, tag=tag) for x, tag in zip(found, asked, strict=True)]
        for work in works:
            work.wait()
        return [x.tolist() for x in found]

    with simgpu.as_cuda(2), simgpu.clock("A100"):  # which pairs them, too
        results = simgpu.ranks(2, exchange, backend=backend, schedule=seed)
    expected = paired(sent, asked) if backend == "gloo" else list(range(len(sent)))
    assert results[0 if itself else 1] == [[float(number)] * 2 for number in expected]


@few
@given(drawn=messages, itself=st.booleans())
def test_process_ranks_pair_messages_by_tag(drawn, itself):
    sent, asked = drawn
    store, patience = dist.HashStore(), timedelta(seconds=10)
    # Before either begins: one that has ended cannot be connected to.
    backends = together(2, lambda rank: dist.ProcessGroupGloo(store, rank, 2, patience))
    says, place = "send and recv of float32 (2,)", "train.py:1"

    def calls_of(rank):
        if rank == 0:
            for number, tag in enumerate(sent):
                x = torch.full((2,), float(number))
                yield Call("send", says, [x], [], 0 if itself else 1, tag, place=place)
        if rank == (0 if itself else 1):
            for tag in asked:
                x = torch.full((2,), -1.0)
                yield Call("recv", says, [], [x], 0, tag, place=place)

    def run(rank):
        transport = process_transport.ProcessTransport(backends[rank], "0", range(2))
        pending = [Pending(call) for call in calls_of(rank)]
        for each in pending:
            transport.submit(each, awaited=False)
        try:
            for each in pending:
                each.wait_and_raise(None)
        except SimGPUError as error:
            return error
        finally:
            transport.closing()()
        return [out.tolist() for each in pending for out in each.call.outs]

    expected = [[float(number)] * 2 for number in paired(sent, asked)]
    assert together(2, run) == ([expected, []] if itself else [[], expected])


def test_error_names_the_tag():
    def send(rank):
        if rank == 0:
            dist.isend(torch.ones(1), 1, tag=4)
        else:
            dist.irecv(torch.ones(1), 0, tag=5)

    with pytest.raises(simgpu.errors.CollectiveMismatchError, match="to rank 1 with tag 4 at"):
        simgpu.ranks(2, send, backend="gloo")
