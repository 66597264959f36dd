"""Every transport against one definition of each collective, and against the others' errors."""

import functools
from datetime import timedelta
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup

from simgpu._distributed import fake_transport, process_transport, thread_transport
from simgpu._distributed.works import Pending
from simgpu.errors import CollectiveMismatchError
from tests.support import transport_cases
from tests.support.threads import together
from tests.support.transport_cases import World

LIMIT = timedelta(seconds=10)  # or a mistake would hang for the half hour of gloo


@functools.cache
def mesh(count):
    """Connected backends, one for each rank."""
    store = dist.HashStore()
    return together(count, lambda rank: dist.ProcessGroupGloo(store, rank, count, LIMIT))


def in_processes_without_sharing(pending, count, members):
    """The same where no amount of data is small enough to be gathered as a whole."""
    with (
        mock.patch.object(process_transport, "_SMALL", 0),
        mock.patch.object(process_transport, "_SHARED", 0),
    ):
        in_processes(pending, count, members)


def in_processes(pending, count, members):
    """The transport of ranks that are processes, here in as many threads."""

    def run(rank):
        for member, each in zip(members, pending, strict=True):
            if member == rank:
                transports[rank].submit(each, awaited=True)
        return True

    transports = [
        process_transport.ProcessTransport(backend, "0", range(count)) for backend in mesh(count)
    ]
    together(count, run)


class Waits:
    """The scheduler of ranks whose calls do not wait: the last one to come does all the work."""

    def pause(self, what):
        """No other rank runs meanwhile."""

    def wait(self, rank, ready, what, seconds=None):
        assert ready(), what


def in_threads(pending, count, members):
    """The transport of ranks that are threads, which come one after the other."""
    calls = thread_transport.GroupCalls()
    transports = [
        thread_transport.ThreadTransport(calls, Waits(), lambda: 1, rank, "0", rank, range(count))
        for rank in range(count)
    ]
    for member, each in zip(members, pending, strict=True):
        transports[member].submit(each, awaited=False)


def in_a_fake_group(pending, count, members):
    """The transport of the backend "fake"."""
    transport = fake_transport.FakeTransport(FakeProcessGroup._create_internal(0, count))
    for each in pending:
        transport.submit(each, awaited=True)


TRANSPORTS = (in_processes, in_processes_without_sharing, in_threads)


def run(transport, calls, members=None, staged=False):
    """Run the calls, on rank 0, 1 and so on or on those of `members`; returns their errors."""
    pending = [Pending(call) for call in calls]
    if staged:
        for each in pending:
            each.copy_inputs()
    members = members or range(len(calls))
    transport(pending, max(members) + 1, members)
    assert all(each.done() for each in pending)
    for each in pending:
        if each.error is None:
            each.complete(None)
    return [each.error for each in pending]


@st.composite
def worlds(draw, most=3):
    count = draw(st.integers(1, most))
    return World(
        count,
        shape=draw(st.sampled_from([(), (0,), (3,), (2, 3)])),
        dtype=draw(st.sampled_from(transport_cases.DTYPES)),
        root=draw(st.integers(0, count - 1)),
        op=draw(st.sampled_from(sorted(transport_cases.REDUCTIONS))),
        seed=draw(st.integers(0, 9)),
    )


def check(case, world, transport, staged):
    found = case(world)
    outs = [call.outs for call, _ in found]
    inputs = [(tensor, tensor.clone()) for call, _ in found for tensor in call.ins]
    if not staged:
        for call, _ in found:
            call.clone_overlapping_inputs()
    assert run(transport, [call for call, _ in found], staged=staged) == [None] * len(found)
    for written, (_, wanted) in zip(outs, found, strict=True):
        assert all(map(torch.equal, written, wanted)), (written, wanted)
    outputs = {out.data_ptr() for side in outs for out in side}
    for tensor, before in inputs:
        assert tensor.data_ptr() in outputs or torch.equal(tensor, before)


@pytest.mark.parametrize("case", transport_cases.CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda each: each.__name__)
@given(world=worlds(), staged=st.booleans())
def test_collectives_match_their_definition(case, transport, world, staged):
    check(case, world, transport, staged)


@pytest.mark.parametrize("case", transport_cases.CASES, ids=lambda case: case.__name__)
@given(world=worlds(most=1))
def test_fake_group_of_one_rank_matches_definition(case, world):
    check(case, world, in_a_fake_group, staged=False)


@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda each: each.__name__)
@given(world=worlds(), staged=st.booleans())
def test_send_reaches_its_recv(transport, world, staged):
    (send, _), (recv, [wanted]) = transport_cases.send_and_recv(world)
    [out] = recv.outs
    members = [0, world.count - 1]
    assert run(transport, [send, recv], members, staged) == [None, None]
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("mistake", transport_cases.MISTAKES, ids=lambda case: case.__name__)
@given(world=worlds().filter(lambda world: world.count > 1 and 0 not in world.shape))
def test_mistakes_have_one_text_in_all_transports(mistake, world):
    texts = set()
    for transport in TRANSPORTS:
        for error in run(transport, mistake(world)):
            assert type(error) is CollectiveMismatchError, error
            texts.add(str(error))
    assert len(texts) == 1, texts
