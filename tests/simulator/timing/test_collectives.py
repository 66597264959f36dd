"""Collectives take what the formulas of rings and trees say, and begin with the last rank."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import simgpu
from simgpu._clock import machine
from simgpu._clock.durations import ring_seconds, tree_seconds
from simgpu._core import hooks

HOP, BANDWIDTH, GAP = 3.4e-6, 300e9, 2e-6
quantities = st.tuples(
    st.integers(1, 64), st.integers(0, 2**30), st.floats(1e9, 1e12), st.floats(0, 1e-4)
)


@given(about=quantities)
def test_formulas_by_hand(about):
    n, size, bandwidth, latency = about
    steps, share = n - 1, (n - 1) / n * (size / bandwidth)
    assert ring_seconds("allreduce_", *about) == pytest.approx(2 * (steps * latency + share))
    assert ring_seconds("allgather_", *about) == pytest.approx(steps * latency + share)
    halves = [ring_seconds(op, *about) for op in ("_reduce_scatter_base_", "_allgather_base_")]
    assert sum(halves) == pytest.approx(ring_seconds("allreduce_", *about))
    if n > 1:
        levels = math.ceil(math.log2(n))
        assert tree_seconds("allreduce_", *about) == pytest.approx(
            2 * (levels * latency + size / bandwidth)
        )
        assert 2 * tree_seconds("broadcast_", *about) == tree_seconds("allreduce_", *about)
        assert ring_seconds("broadcast_", *about) == pytest.approx(
            steps * latency + size / bandwidth
        )
        for op in ("gather_", "scatter_"):
            assert ring_seconds(op, *about) == pytest.approx(latency + share)
    assert ring_seconds("send", *about) == pytest.approx(latency + size / bandwidth)
    assert tree_seconds("allgather_", *about) == math.inf


def all_reduce(n, size):
    about = n, size, BANDWIDTH, HOP
    return min(ring_seconds("allreduce_", *about), tree_seconds("allreduce_", *about))


def test_ranks_wait_for_the_last_and_overlap_asynchronous_calls():
    n, count = 2, 2**20
    ends = {}

    def rank(number):
        torch.cuda.set_device(number)
        x, y = torch.ones(count, device="cuda"), torch.ones(count, device="cuda")
        distributed.all_reduce(y)  # from here on, all begin together
        torch.cuda.synchronize()
        ends[number, "begin"] = clock.now
        if number == 1:
            y.neg_()
        distributed.all_reduce(x)
        torch.cuda.current_stream().synchronize()
        ends[number, "blocking"] = clock.now
        work = distributed.all_reduce(x, async_op=True)
        y.neg_()
        work.wait()
        torch.cuda.current_stream().synchronize()
        ends[number, "overlapping"] = clock.now
        if number == 0:
            distributed.send(x, 1)
        else:
            distributed.recv(x, 0)
        torch.cuda.synchronize()
        ends[number, "sent"] = clock.now

    with simgpu.as_cuda(n), simgpu.clock("A100", "nvlink", host_cost=0.0) as clock:
        simgpu.ranks(n, rank)
    assert all(ends[0, what] == ends[1, what] for what in ("begin", "blocking", "overlapping"))
    kernel, reduced = GAP + 8 * count / 1555e9, all_reduce(n, 4 * count)
    blocking, overlapping, sent = (
        ends[1, after] - ends[1, before]
        for before, after in (
            ("begin", "blocking"),
            ("blocking", "overlapping"),
            ("overlapping", "sent"),
        )
    )
    assert blocking == pytest.approx(kernel + reduced, rel=1e-9)
    assert overlapping == pytest.approx(max(kernel, reduced), rel=1e-9)
    assert sent == pytest.approx(HOP + 4 * count / BANDWIDTH, rel=1e-9)


@given(n=st.integers(2, 3), data=st.data(), count=st.sampled_from((1, 1000)), op=st.booleans())
def test_gather_and_scatter_move_the_bytes_of_the_root(n, data, count, op):
    """The other ranks know only their own part, whichever comes first."""
    root = data.draw(st.integers(0, n - 1))

    def rank(number):
        torch.cuda.set_device(number)
        x = torch.ones(count, device="cuda")
        parts = [torch.ones_like(x) for _ in range(n)] if number == root else None
        if op:
            distributed.gather(x, parts, dst=root)
        else:
            distributed.scatter(x, parts, src=root)

    with simgpu.as_cuda(n), simgpu.clock("A100", "nvlink") as clock:
        simgpu.ranks(n, rank)
    spans = [span for spans in clock.timelines.values() for span in spans]
    moved = [span.nbytes for span in spans if span.kind == "collective"]
    assert moved == [4 * n * count] * n  # the same on each device


def test_a_step_of_data_parallelism_waits_for_its_collectives():
    marks = {}

    def rank(number):
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
        net(torch.ones(8, 1024, device="cuda")).sum().backward()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        marks[number] = clock.now

    with simgpu.as_cuda(2), simgpu.clock("A100", "pcie") as clock:
        simgpu.ranks(2, rank)
    reductions = [
        span
        for (_, stream), spans in clock.timelines.items()
        if isinstance(stream, str)
        for span in spans
        if span.nbytes >= 4 * 1024 * 1025
    ]
    assert reductions
    assert min(marks.values()) >= max(span.end for span in reductions)


def kernels_of_backward(layers, width, megabytes, links, single):
    """When each kernel of a backward pass of rank 0 begins and ends, from its beginning on."""
    begin = []

    def rank(number):
        net = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
        wrapped = torch.nn.parallel.DistributedDataParallel(
            net.to(f"cuda:{number}"), bucket_cap_mb=megabytes
        )
        loss = wrapped(torch.ones(64, width, device=f"cuda:{number}")).sum()
        torch.cuda.synchronize(number)
        if number == 0:
            begin.append(clock.now)
        loss.backward()

    with simgpu.as_cuda(2), simgpu.clock("A100", links) as clock:
        if single:  # as in a process of its own: the other rank comes when it comes
            distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
            rank(0)
            distributed.destroy_process_group()
        else:
            simgpu.ranks(2, rank)
    spans = clock.timelines[0, 0]
    return [
        moment - begin[0]
        for span in spans
        if span.begin >= begin[0]
        for moment in (span.begin, span.end)
    ]


@given(
    layers=st.integers(2, 5),
    width=st.sampled_from([256, 512]),
    megabytes=st.integers(1, 3),
    speeds=st.lists(st.floats(1e8, 1e11), min_size=2, max_size=2, unique=True),
    single=st.booleans(),
)
def test_sums_of_gradients_hold_up_no_kernel_of_the_backward_pass(
    layers, width, megabytes, speeds, single
):
    """However slow the links are: what waits for them comes after it."""
    one, other = (
        kernels_of_backward(
            *(layers, width, megabytes),
            [(0, "host", speed), (1, "host", speed)],
            single,
        )
        for speed in speeds
    )
    assert len(one) > 4 * layers
    assert one == pytest.approx(other, rel=1e-9, abs=1e-12)


places = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1), st.integers(1, 2))


@given(one=places, other=places, sends=st.tuples(st.booleans(), st.booleans()))
def test_the_clock_pairs_messages_by_tag(one, other, sends):
    """Each is source, target, tag and number; either side of it may come first."""

    def about(message, sends):
        source, target, tag, number = message
        rank, peer = (source, target) if sends else (target, source)
        return hooks.Collective("0", number, (0, 1), "", rank, peer, tag, sends)

    first, second = map(about, (one, other), sends)
    assert (machine._key(first) == machine._key(second)) == (one == other)
