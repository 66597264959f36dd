"""all_to_all between ranks some of which have nothing to send, or nothing to receive."""

from datetime import timedelta

import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist

from simgpu._distributed import process_transport
from simgpu._distributed.collectives import Call
from simgpu._distributed.works import Pending
from tests.support.threads import together
from tests.support.worlds import few


def numbers(source, target, count):
    return torch.full((count,), 10.0 * source + target)


def exchange(rows):
    """Let each rank send `rows[source][target]` numbers to each other one, then all sum up."""
    count, store = len(rows), dist.HashStore()

    def run(rank):
        backend = dist.ProcessGroupGloo(store, rank, count, timedelta(seconds=10))
        transport = process_transport.ProcessTransport(backend, "0", range(count))
        mine = [numbers(rank, to, each) for to, each in enumerate(rows[rank])]
        outs = [torch.empty(row[rank]) for row in rows]
        calls = [Call("all_to_all", "all_to_all", mine, outs), Call("barrier", "barrier", [], [])]
        for number, call in enumerate(calls, start=1):
            call.number, call.place = number, "train.py:1"
            pending = Pending(call)
            transport.submit(pending, awaited=True)
            assert pending.error is None, pending.error
        wanted = [numbers(by, rank, row[rank]) for by, row in enumerate(rows)]
        assert torch.equal(torch.cat(outs), torch.cat(wanted))
        return True

    assert all(together(count, run))


def tables(count):
    """How many numbers each rank sends to each."""
    row = st.lists(st.sampled_from([0, 0, 1, 3]), min_size=count, max_size=count)
    return st.lists(row, min_size=count, max_size=count)


@few
@given(rows=st.integers(2, 3).flatmap(tables))
@example(rows=[[0, 0], [1, 2]])  # rank 0 sends nothing
@example(rows=[[0, 1], [0, 2]])  # rank 0 receives nothing
@example(rows=[[0, 0, 0], [0, 1, 2], [0, 3, 1]])  # rank 0 does neither
def test_rank_sends_or_receives_nothing(rows):
    exchange(rows)
