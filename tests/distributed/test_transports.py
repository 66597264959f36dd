"""Every transport against one definition of each collective, and against the others' errors.

Fake process groups too: on devices they do what they do on the CPU.
"""

import functools
from datetime import timedelta
from functools import partial
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.testing._internal.distributed.fake_pg import FakeStore

import simgpu
from simgpu._distributed import fake_transport, groups, process_transport, thread_transport
from simgpu._distributed.collectives import Call, Reduction
from simgpu._distributed.works import Pending
from simgpu.errors import CollectiveMismatchError
from tests.support import collectives
from tests.support.threads import together

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
each_transport = pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda each: each.__name__)


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


class World(NamedTuple):
    """What the calls of one case have in common."""

    count: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    root: int
    op: str
    seed: int

    def brought(self):
        return collectives.brought(self.count, self.shape, self.dtype, self.seed)

    def call(self, kind, ins, outs, **facts):
        """A call of one rank; all ranks have to ask for the same."""
        facts = {"peer": self.root, "place": "train.py:1", **facts}
        return Call(kind, f"{kind} {self}", ins, outs, number=1, **facts)


def calls_of(kind, world, parts, **facts):
    """The calls of all ranks, with the outputs that each has to have."""
    found = []
    reduction = Reduction(world.op) if "reduce" in kind else None
    for rank in range(world.count):
        ins = [part.clone() for part in collectives.given(kind, parts, rank, world.root)]
        values = collectives.wanted(kind, parts, rank, world.root, world.op)
        outs = [torch.full_like(value, 7) for value in values]
        if kind in collectives.IN_PLACE:
            receives = rank != world.root if kind == "broadcast" else bool(values)
            outs, values = (ins, values) if receives else ([], [])
        found.append((world.call(kind, ins, outs, reduction=reduction, **facts), values))
    return found


def in_place(world):
    """A gather in which each rank's own part is where it will be."""
    found = calls_of("all_gather", world, world.brought())
    for rank, (call, values) in enumerate(found):
        call.ins = [call.outs[rank].copy_(values[rank])]
    return found


def other_lengths(kind):
    def calls(world):
        parts = collectives.uneven(world.count, world.dtype, world.seed)
        return calls_of(kind, world, parts, has_splits=kind == "all_to_all")

    return calls


CASES = {
    kind: lambda world, kind=kind: calls_of(kind, world, world.brought())
    for kind in collectives.MEANINGS
} | {
    "all_gather in place": in_place,
    "all_gather of other lengths": other_lengths("all_gather"),
    "all_to_all of other lengths": other_lengths("all_to_all"),
}


@st.composite
def worlds(draw, most=3):
    count = draw(st.integers(1, most))
    return World(
        count,
        shape=draw(st.sampled_from([(), (0,), (3,), (2, 3)])),
        dtype=draw(st.sampled_from(collectives.DTYPES)),
        root=draw(st.integers(0, count - 1)),
        op=draw(st.sampled_from(sorted(collectives.REDUCTIONS))),
        seed=draw(st.integers(0, 9)),
    )


def check(name, world, transport, staged):
    found = CASES[name](world)
    outs = [call.outs for call, _ in found]
    inputs = [(tensor, tensor.clone()) for call, _ in found for tensor in call.ins]
    if not staged:
        for call, _ in found:
            call.clone_overlapping_inputs()
    assert run(transport, [call for call, _ in found], staged=staged) == [None] * len(found)
    for written, (_, values) in zip(outs, found, strict=True):
        for one, other in zip(written, values, strict=True):
            assert torch.equal(one, other), (written, values)
    outputs = {out.data_ptr() for side in outs for out in side}
    for tensor, before in inputs:
        assert tensor.data_ptr() in outputs or torch.equal(tensor, before)


@pytest.mark.parametrize("name", CASES)
@each_transport
@given(world=worlds(), staged=st.booleans())
def test_collectives_match_their_definition(name, transport, world, staged):
    check(name, world, transport, staged)


@pytest.mark.parametrize("name", CASES)
@given(world=worlds(most=1))
def test_fake_group_of_one_rank_matches_definition(name, world):
    check(name, world, in_a_fake_group, staged=False)


@each_transport
@given(size=st.integers(4, 9), model=st.sampled_from(["ring", "tree"]), seed=st.integers(0, 99))
def test_each_segment_is_added_in_its_own_order(transport, size, model, seed):
    """NCCL cuts a tensor into a segment for each rank, and begins each with another rank."""
    count, reduction = 3, Reduction("SUM")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, size * count, generator=generator)
    world = World(count, (size,), torch.float32, 0, "SUM", seed)
    wholes, outs = [part.clone() for part in drawn], [torch.empty(size) for _ in drawn]
    of_wholes = [world.call("all_reduce", [x], [x], reduction=reduction) for x in wholes]
    of_parts = [
        world.call("reduce_scatter", list(x.chunk(count)), [out], reduction=reduction)
        for x, out in zip(drawn, outs, strict=True)
    ]
    with simgpu.comm.reduction(model):
        segments = zip(*(part.chunk(count) for part in drawn), strict=True)
        totals = [reduction.combine(list(parts), segment) for segment, parts in enumerate(segments)]
        for calls in (of_wholes, of_parts):
            assert run(transport, calls) == [None] * count
    assert all(torch.equal(whole, torch.cat(totals)) for whole in wholes)
    assert all(map(torch.equal, outs, totals))


def sent(world, **facts):
    """Rank 0 sends to the last rank, which may be itself; the other ranks make no call."""
    mine = world.brought()[0][0]
    send = world.call("send", [mine], [], **{**facts, "peer": world.count - 1})
    recv = world.call("recv", [], [torch.full_like(mine, 7)], **{**facts, "peer": 0})
    send.says = send.shown = recv.shown = recv.says
    return [send, recv], mine


@each_transport
@given(world=worlds(), staged=st.booleans())
def test_send_reaches_its_recv(transport, world, staged):
    calls, wanted = sent(world)
    [out] = calls[1].outs
    assert run(transport, calls, [0, world.count - 1], staged) == [None, None]
    assert torch.equal(out, wanted)


@each_transport
@given(world=worlds().filter(lambda world: world.count > 1))
def test_send_within_one_device_raises(transport, world):
    calls, _ = sent(world, device="machine:0")
    for error in run(transport, calls, [0, world.count - 1]):
        assert type(error) is CollectiveMismatchError, error
        assert "Duplicate GPU detected" in str(error)


# Calls that do not go together: an error of all ranks, in one text.


def other_text(world):
    """The last rank asks for something else."""
    calls = [call for call, _ in CASES["all_reduce"](world)]
    calls[-1].says = calls[-1].shown = "broadcast"
    calls[-1].place = "other.py:2"
    return calls


def one_device(kind):
    """All ranks are on one device."""

    def calls(world):
        return [call for call, _ in calls_of(kind, world, world.brought(), device="machine:0")]

    return calls


def other_splits(world):
    """Rank 0 sends the last rank more than that one awaits."""
    calls = [call for call, _ in CASES["all_to_all"](world)]
    calls[0].ins[-1] = calls[0].ins[-1].new_ones(2 * calls[0].ins[-1].numel())
    return calls


MISTAKES = {
    "other text": other_text,
    "one device to all_reduce": one_device("all_reduce"),
    "one device to broadcast": one_device("broadcast"),
    "other splits": other_splits,
}


@pytest.mark.parametrize("name", MISTAKES)
@given(world=worlds().filter(lambda world: world.count > 1 and 0 not in world.shape))
def test_mistakes_have_one_text_in_all_transports(name, world):
    texts = set()
    for transport in TRANSPORTS:
        for error in run(transport, MISTAKES[name](world)):
            assert type(error) is CollectiveMismatchError, error
            texts.add(str(error))
    assert len(texts) == 1, texts


pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


def barrier(device, late):
    options = dist.BarrierOptions()
    options.device, options.asyncOp = device, late
    return dist.group.WORLD.barrier(options)


def made(name, parts, root, late, device):
    """Make a call, which is waited for by itself or by the program; returns its outputs."""
    if name == "barrier":
        work, outs = barrier(torch.device(device), late), []
    elif name == "recv":
        outs = [parts[0][0].to(device, copy=True)]
        work = (dist.irecv if late else dist.recv)(outs[0], root)
    else:
        work, outs = collectives.begin(
            name, parts, root, lambda x: x.to(device, copy=True), async_op=late
        )
    if late:
        work.wait()
    return outs


def compare(call, me, count, fails=False):
    """Make a call, which returns its outputs, on the CPU and on a device."""
    options = FakeProcessGroup.Options()
    options.error_on_collective = fails
    dist.init_process_group(
        "fake", store=FakeStore(), rank=me, world_size=count, pg_options=options
    )
    try:
        host, found = (outcome(call, device) for device in ("cpu", "cuda"))
        calls = groups.find(dist.group.WORLD)._last.values()
        waited_for = [call for call in calls if not call.done()]
    finally:
        dist.destroy_process_group()
    for call in waited_for:
        call.finish()  # or whoever waits for a device next would wait for ever
    assert not waited_for
    assert found == host


def outcome(call, device):
    try:
        return [out.tolist() for out in call(device)]
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("name", [*collectives.NAMES, "barrier", "recv"])
@given(
    count=st.integers(2, 4),
    data=st.data(),
    width=st.integers(1, 3),
    late=st.booleans(),
    fails=st.sampled_from([False, False, True]),
)
def test_fake_calls_are_equal_on_devices_and_cpu(cuda, name, count, data, width, late, fails):
    me = data.draw(st.integers(0, count - 1), label="rank")
    root = (me + 1) % count if name == "recv" else data.draw(st.integers(0, count - 1), "root")
    parts = collectives.brought(count, (width,), torch.float32, width)
    compare(lambda device: made(name, parts, root, late, device), me, count, fails)


@pytest.mark.parametrize("name", ["all_gather", "all_to_all", "all_to_all_single"])
@given(count=st.integers(2, 4), even=st.booleans(), seed=st.integers(0, 9), late=st.booleans())
@example(count=2, even=True, seed=0, late=False)
def test_fake_calls_of_uneven_lengths_are_equal_on_devices_and_cpu(
    cuda, name, count, even, seed, late
):
    """Also splits as large as without; and no rows are no rows for others."""
    parts = collectives.uneven(count, torch.float32, seed)
    if even:
        parts = collectives.brought(count, (2,), torch.float32, seed)

    def call(device):
        place, splits = partial(torch.Tensor.to, device=device, copy=True), "single" in name
        work, outs = collectives.begin(name, parts, 0, place, splits=splits, async_op=late)
        if late:
            work.wait()
        return outs

    compare(call, 0, count)
