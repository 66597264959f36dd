"""How a call reads and writes memory: in which order, in which mode, and after an error."""

import weakref
from datetime import timedelta

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu.errors import CollectiveMismatchError, UnsupportedError
from tests.support import collectives, rank_processes
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")

# Newer releases have another name for it.
GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

ROOM = 8

# What is called, from where in the common memory on, and on how much of it.
steps = st.lists(
    st.tuples(
        st.sampled_from(["all_reduce", "broadcast", "gather"]),
        st.integers(0, ROOM - 1),
        st.integers(1, ROOM),
        st.integers(0, ROOM),
    ),
    min_size=2,
    max_size=5,
)


def begin(step, memory, number, count, async_op):
    """One call that reads and writes parts of the memory; gathers may read what they overwrite."""
    kind, at, size, source = step
    size = min(size, ROOM - at)
    part = memory[at : at + size]
    if kind == "all_reduce":
        return dist.all_reduce(part, async_op=async_op)
    if kind == "broadcast":
        return dist.broadcast(part, number % count, async_op=async_op)
    each = max(1, ROOM // count - 1)
    at = min(at, ROOM - count * each)
    source = min(source, ROOM - each)
    read = memory[source : source + each]
    if not async_op:  # NCCL takes an input that lies elsewhere in its output for another thing
        read = read.clone()
    return GATHER(memory[at : at + count * each], read, async_op=async_op)


def asked_for(work):
    while not work.is_completed():
        pass


def run(rank, count, steps, waits=None, wait=dist.Work.wait):
    """What lies in the memory at the end; `waits`: the order of waits behind the last."""
    memory = torch.arange(ROOM, device="cuda") + 10.0 * rank
    late = waits is not None
    works = [begin(step, memory, n, count, late) for n, step in enumerate(steps)]
    if late:
        wait(works[-1])  # which waits for all before it
        for which in waits:
            wait(works[which])
    return memory.tolist()


each_way = pytest.mark.parametrize("wait", [dist.Work.wait, asked_for])


@each_way
@few
@given(count=strategies.world_sizes(1, 3), steps=steps, data=st.data(), seed=schedules)
def test_calls_on_shared_memory_run_in_stream_order(count, steps, wait, data, seed):
    """Each reads what the ones before it have written, and the last one to write is seen."""
    waits = [data.draw(st.permutations(range(len(steps)))) for _ in range(count)]
    wanted = simgpu.ranks(count, lambda rank: run(rank, count, steps))
    found = simgpu.ranks(count, lambda r: run(r, count, steps, waits[r], wait), schedule=seed)
    assert found == wanted


WAYS = ("synchronize", "last", "each")


@pytest.mark.without("--races", reason="reads what nobody has waited for")
@few
@given(
    count=strategies.world_sizes(2, 3),
    fails=st.lists(st.booleans(), min_size=1, max_size=4),
    reads=st.booleans(),
    how=st.sampled_from(WAYS),
    seed=schedules,
)
@example(count=3, fails=[False, True], reads=False, how="last", seed=0)
@example(count=2, fails=[True], reads=True, how="each", seed=None)
def test_failed_call_writes_nothing_and_blocks_no_other(count, fails, reads, how, seed):
    """Whoever reads what it was to write finds no numbers."""

    def run(rank):
        memory = [torch.ones(4, device="cuda") for _ in fails]
        tensors = [x[: 2 + rank * fail] for x, fail in zip(memory, fails, strict=True)]
        works = [dist.all_reduce(x, async_op=True) for x in tensors]
        found = [torch.zeros(2 * count, device="cuda") for _ in fails if reads]
        works += [GATHER(out, x[:2], async_op=True) for out, x in zip(found, memory, strict=reads)]
        failing = [*fails, *(False for _ in found)]
        waits = {"synchronize": [torch.cuda.synchronize], "last": [works[-1].wait]}
        raised = 0
        for wait in waits.get(how, [work.wait for work in works]):
            try:
                wait()
            except CollectiveMismatchError:
                raised += 1
        assert raised == (sum(fails) if how == "each" else failing[-1])
        for x, fail in [*zip(tensors, fails, strict=True), *zip(found, fails, strict=reads)]:
            assert x.isnan().all() if fail else x.tolist() == [count] * len(x)

    simgpu.ranks(count, run, schedule=seed)


@few
@given(
    count=strategies.world_sizes(2, 3),
    fails=st.lists(st.booleans(), min_size=1, max_size=3),
    data=st.data(),
    seed=schedules,
)
def test_work_reports_how_its_call_ended(count, fails, data, seed):
    asked = [data.draw(st.permutations(range(len(fails)))) for _ in range(count)]

    def run(rank):
        tensors = [torch.ones(2 + rank * fail, device="cuda") for fail in fails]
        works = [dist.all_reduce(x, async_op=True) for x in tensors]
        for which in asked[rank]:
            work = works[which]
            while not work.is_completed():  # which may be so a moment later
                assert not work.is_success() or work.is_completed()
            assert work.is_success() == (not fails[which])
            error = work.exception()
            assert type(error) is (CollectiveMismatchError if fails[which] else type(None))
            if fails[which]:
                with pytest.raises(CollectiveMismatchError) as raised:
                    work.wait()
                assert str(raised.value) == str(error)
                assert not work.is_success()

    simgpu.ranks(count, run, schedule=seed)


@few
@given(count=strategies.world_sizes(1, 4), size=st.integers(1, 3), seed=schedules)
def test_future_has_outputs_held_by_the_work_only(count, size, seed):
    def run(rank):
        outs = [torch.zeros(size, device="cuda") for _ in range(count)]
        gone = [weakref.ref(out) for out in outs]
        work = dist.all_gather(outs, torch.full((size,), rank + 1.0, device="cuda"), async_op=True)
        del outs
        found = work.get_future().then(lambda done: [x.tolist() for x in done.value()]).wait()
        del work
        return found, [each() for each in gone]

    wanted = [[rank + 1.0] * size for rank in range(count)]
    assert simgpu.ranks(count, run, schedule=seed) == [(wanted, [None] * count)] * count


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
