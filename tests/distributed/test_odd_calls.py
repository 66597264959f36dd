"""Calls on memory in common, of a rank with itself, with a time-out, and in captured graphs."""

from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu._distributed import process_transport
from simgpu._distributed.collectives import Call
from simgpu._distributed.works import Pending
from simgpu.errors import CollectiveMismatchError, CollectiveTimeoutError, UnsupportedError
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")


def scatter(out, whole):
    parts = list(whole.chunk(dist.get_world_size())) if dist.get_rank() == 0 else None
    dist.scatter(out, parts, 0)


def gather(out, part):
    parts = list(out.chunk(dist.get_world_size())) if dist.get_rank() == 0 else None
    dist.gather(part, parts, 0)


# How many parts of a rank each call writes and reads, one for each rank or a single one.
# Newer releases have other names for two of them, and warn of the older ones.
MOVING = {
    "all_to_all": (dist.all_to_all_single, True, True),
    "all_gather": (
        getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor,
        *(True, False),
    ),
    "reduce_scatter": (
        getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor,
        *(False, True),
    ),
    "gather": (gather, True, False),
    "scatter": (scatter, False, True),
}


@few
@given(
    name=st.sampled_from(sorted(MOVING)),
    count=strategies.world_sizes(2, 4),
    width=st.integers(1, 3),
    data=st.data(),
    seed=schedules,
)
def test_a_call_reads_what_it_overwrites_before(name, count, width, data, seed):
    call, *of_all = MOVING[name]
    sizes = [width * (count if each else 1) for each in of_all]
    places = [data.draw(st.integers(0, count * width)) for _ in sizes]

    def in_common(rank):
        memory = torch.arange(2 * count * width, device="cuda") + 100.0 * rank
        out, read = (memory.narrow(0, at, size) for at, size in zip(places, sizes, strict=True))
        apart = out.clone()
        call(apart, read.clone())
        call(out, read)
        return torch.equal(out, apart)

    assert simgpu.ranks(count, in_common, schedule=seed) == [True] * count


@few
@given(
    count=strategies.world_sizes(),
    seconds=st.sampled_from([0.001, 0.01]),
    early=st.integers(0, 3),
    seed=schedules,
)
def test_no_time_passes_while_other_ranks_run(count, seconds, early, seed):
    def wait(rank):
        x = torch.full((2,), rank + 1.0, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        if rank == early:
            dist.barrier(device_ids=[rank])
        assert work.wait(timedelta(seconds=seconds))
        if rank != early:
            dist.barrier(device_ids=[rank])
        return x.tolist()

    total = count * (count + 1) / 2
    assert simgpu.ranks(count, wait, schedule=seed) == [[total] * 2] * count


@few
@given(count=strategies.world_sizes(2, 4), at=st.integers(1, 3), seed=schedules)
def test_a_part_may_lie_where_that_of_another_rank_comes(count, at, seed):
    def call(rank):
        outs = [torch.zeros(2, device="cuda") for _ in range(count)]
        dist.all_gather(outs, outs[(rank + at) % count].fill_(rank + 1))
        return [out.tolist() for out in outs]

    wanted = [[rank + 1.0] * 2 for rank in range(count)]
    assert simgpu.ranks(count, call, schedule=seed) == [wanted] * count


def to_itself(backend, kinds, sizes):
    """Sends and receives of the only rank with itself: the calls, and their errors."""
    transport, numbers, found = (
        process_transport.ProcessTransport(backend, "0", [0]),
        {"send": 0, "recv": 0},
        [],
    )
    for kind, size in zip(kinds, sizes, strict=True):
        numbers[kind] += 1
        tensor = torch.full((size,), float(numbers[kind] if kind == "send" else -1))
        says = f"send and recv of float32 ({size},)"
        ins, outs = ([tensor], []) if kind == "send" else ([], [tensor])
        call = Call(kind, says, ins, outs, place="train.py:1")
        call.number = numbers[kind]
        pending = Pending(call)
        transport.submit(pending, awaited=False)
        found.append(pending)
        if kind == "send":  # it is on its way
            tensor.zero_()
    errors = []
    for pending in found:
        try:
            pending.wait_and_raise(None)
        except (CollectiveMismatchError, CollectiveTimeoutError) as error:
            errors.append(error)
    transport.closing()()
    return [pending.call for pending in found], errors


@few
@given(data=st.data(), sizes=st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_a_rank_of_a_process_sends_to_itself(data, sizes):
    kinds = data.draw(st.permutations(["send", "recv"] * len(sizes)))
    backend = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=10))
    queues = {kind: iter(sizes) for kind in ("send", "recv")}
    calls, errors = to_itself(backend, kinds, [next(queues[kind]) for kind in kinds])
    assert errors == []
    received = [call.outs[0].tolist() for call in calls if call.kind == "recv"]
    assert received == [[float(i)] * size for i, size in enumerate(sizes, start=1)]


def test_rank_receives_its_own_send():
    backend = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(milliseconds=20))
    _, [error] = to_itself(backend, ["send", "recv"], [1, 2])
    assert "rank 0: send and recv of float32 (1,) at train.py:1" in str(error)
    _, [error] = to_itself(backend, ["recv"], [1])
    assert isinstance(error, CollectiveTimeoutError)
    assert "0.02 s for its own send" in str(error)


@few
@given(
    name=st.sampled_from(["all_reduce", "broadcast", "barrier", "isend"]),
    asynchronous=st.booleans(),
)
def test_a_call_that_is_captured_is_refused(name, asynchronous):
    def capture(rank):
        x = torch.ones(2, device="cuda")
        calls = {
            "all_reduce": lambda: dist.all_reduce(x, async_op=asynchronous),
            "broadcast": lambda: dist.broadcast(x, 0, async_op=asynchronous),
            "barrier": lambda: dist.barrier(async_op=asynchronous, device_ids=[rank]),
            "isend": lambda: dist.isend(x, 0),
        }
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.neg()
            with pytest.raises(UnsupportedError, match="cannot be captured into a graph"):
                calls[name]()
        dist.all_reduce(x)  # the group goes on
        return x.tolist()

    assert simgpu.ranks(1, capture) == [[1.0, 1.0]]


@few
@given(count=strategies.world_sizes(2, 4), seed=schedules)
def test_each_rank_captures_on_its_own_device(count, seed):
    def capture(rank):
        graph, x = torch.cuda.CUDAGraph(), torch.ones(2, device="cuda")
        with torch.cuda.graph(graph):
            y = x + rank
        dist.barrier(device_ids=[rank])
        x.fill_(3)
        graph.replay()
        return y.tolist()

    assert simgpu.ranks(count, capture, schedule=seed) == [[3.0 + i] * 2 for i in range(count)]


@few
@given(count=strategies.world_sizes(1, 3), seconds=st.integers(1, 99), parts=st.integers(0, 2))
def test_timeout_longer_than_any_wait_is_accepted(count, seconds, parts):
    limit = timedelta(seconds=seconds)
    # By the name that it has in newer releases, or the one that it had before.
    c10d = dist.distributed_c10d
    set_timeout = getattr(dist, "set_timeout", c10d._set_pg_timeout)

    def use(rank):
        for group in (None, *(dist.new_group(range(count)) for _ in range(parts))):
            set_timeout(limit, group)
        dist.distributed_c10d._add_ephemeral_timeout_for_all_pgs(limit)
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x)
        return x.item()

    assert simgpu.ranks(count, use) == [count] * count


@given(
    devices=st.tuples(*[st.sampled_from(["cpu", "cuda:0", "cuda:1", 1])] * 2),
    by_call=st.booleans(),
)
def test_rpc_refuses_to_map_devices(devices, by_call):
    """PyTorch ends in an internal assertion where the call is made."""
    from torch.distributed import rpc

    def make():
        given = dict([devices])
        if not by_call:
            return rpc.TensorPipeRpcBackendOptions(device_maps={"other": given})
        options = rpc.TensorPipeRpcBackendOptions()
        options.set_device_map("other", given)
        return options

    if devices == ("cpu", "cpu"):
        assert make().device_maps == {"other": {torch.device("cpu"): torch.device("cpu")}}
        return
    with pytest.raises(UnsupportedError, match="do not travel by RPC"):
        make()
