"""Calls on memory in common, in inference mode, with a time-out, and in captured graphs."""

from datetime import timedelta

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu.errors import UnsupportedError
from tests.support import collectives, rank_processes
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")


@pytest.mark.parametrize(
    "name", [name for name in collectives.CALLS if name not in collectives.IN_PLACE]
)
@few
@given(
    count=strategies.world_sizes(2, 4),
    width=st.integers(1, 3),
    data=st.data(),
    seed=schedules,
)
def test_call_reads_overlapping_input_before_it_writes(name, count, width, data, seed):
    of_all = name in ("all_gather", "gather", "all_to_all"), name in collectives.GIVES_EACH
    sizes = [width * (count if each else 1) for each in of_all]
    places = [data.draw(st.integers(0, count * width)) for _ in sizes]

    def call(out, read):
        outs, ins = out.split(width), read.split(width)
        is_root = dist.get_rank() == 0
        outs = [] if name == "gather" and not is_root else list(outs)
        ins = [] if name == "scatter" and not is_root else list(ins)
        collectives.CALLS[name](ins, outs, 0)

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
@given(
    name=st.sampled_from(["all_reduce", "broadcast", "barrier", "isend"]),
    asynchronous=st.booleans(),
)
def test_captured_call_raises(name, asynchronous):
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


def add_in_modes(rank, modes):
    """Sums of one tensor, each with a mode to make it in, to call in and to wait in."""
    found = []
    for number, (made, called, waited, asynchronous) in enumerate(modes):
        with torch.inference_mode(made):
            x = torch.full((3,), float(rank + number), device="cuda")
        with torch.inference_mode(called):
            work = dist.all_reduce(x, async_op=asynchronous)
        with torch.inference_mode(waited):
            if asynchronous:
                work.wait()
        found.append((x.tolist(), x.is_inference()))
    return found


def expected(count, modes):
    total = sum(range(count))
    return [[([float(total + count * i)] * 3, made) for i, (made, *_) in enumerate(modes)]] * count


MODES = st.lists(st.tuples(*[st.booleans()] * 4), min_size=1, max_size=4)


@few
@given(count=strategies.world_sizes(1, 4), modes=MODES, seed=schedules)
def test_call_works_in_any_inference_mode(count, modes, seed):
    found = simgpu.ranks(count, lambda rank: add_in_modes(rank, modes), schedule=seed)
    assert found == expected(count, modes)


@pytest.mark.full
def test_processes_call_in_any_inference_mode():
    modes = [(i < 4, i % 4 < 2, i % 2 < 1, asked) for i in range(8) for asked in (True, False)]
    assert rank_processes.run(2, add_in_modes, modes) == expected(2, modes)
