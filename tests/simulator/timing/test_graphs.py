"""A replayed graph is one launch, and its kernels wait only for each other."""

from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import simgpu
from tests.simulator.timing.programs import BYTES_PER_SECOND, GAP, UP, links

COST = 2**-15  # more than a kernel takes: launched one by one, they would wait for the host
STREAMS = st.integers(0, 2)
few = settings(max_examples=5)
VIEWS = torch.library.Library("simgpu_timed_views", "DEF")
VIEWS.define("same(Tensor(a) x) -> Tensor(a)")
VIEWS.impl("same", lambda x: x.view(x.shape), "CPU")
SIZES = st.sampled_from([2**10, 2**20])
STEPS = st.lists(
    st.tuples(st.just("kernel"), STREAMS, SIZES)
    | st.tuples(st.just("kernel"), STREAMS, SIZES)
    | st.tuples(st.just("wait"), STREAMS, STREAMS),
    max_size=10,
).map(lambda steps: [*steps, ("kernel", 0, 2**10)])


def captured(steps):
    """A graph of these steps on three streams, of which the first begins and ends the capture."""
    sizes = {size for what, _, size in steps if what == "kernel"}
    tensors = {(s, size): torch.ones(size // 4, device="cuda") for s in range(3) for size in sizes}
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        queues = [torch.cuda.current_stream()]
        while len(queues) < 3:  # one of CUDA's pool may be the stream that is captured
            if (another := torch.cuda.Stream()) not in queues:
                queues.append(another)
        for side in queues[1:]:
            side.wait_stream(queues[0])
        tensors[0, 0] = torch.empty(1, device="cuda")  # of which CUDA makes no node
        for what, s, about in steps:
            if what == "wait":
                queues[s].wait_stream(queues[about])
            else:
                with torch.cuda.stream(queues[s]):  # a view is no node either
                    torch.ops.simgpu_timed_views.same(tensors[s, about].neg_())
        for side in queues[1:]:
            queues[0].wait_stream(side)
    return graph, tensors


def by_hand(steps, begin):
    """When the kernels of each stream run, and when all have ended, from `begin` on."""
    free, spans = [begin] * 3, defaultdict(list)
    for what, s, about in steps:
        if what == "wait":
            free[s] = max(free[s], free[about])
        else:
            spans[s].append((free[s], free[s] + (GAP + 2 * about / BYTES_PER_SECOND)))
            free[s] = spans[s][-1][1]
    return spans, max(free)


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setenv("SIMGPU_CPU_KERNELS", "simgpu_timed_views::*")
    with simgpu.as_cuda(1):
        yield


@few
@given(steps=STEPS)
def test_a_replay_takes_the_time_worked_out_by_hand(cuda, steps):
    expected = defaultdict(list)
    with simgpu.clock("A100", links(), host_cost=COST, launch_gap=GAP) as estimate:
        graph, _tensors = captured(steps)
        before = {queue: len(spans) for queue, spans in estimate.timelines.items()}
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        torch.cuda.synchronize()
        for _ in range(2):
            now = estimate.now
            begin.record()
            graph.replay()
            end.record()
            spans, until = by_hand(steps, now + COST)
            for stream, each in spans.items():
                expected[stream] += each
            assert estimate.now == now + COST
            end.synchronize()
            assert estimate.now == until
            assert begin.elapsed_time(end) == (until - now) * 1e3
        seen = {
            queue: [(span.begin, span.end) for span in spans[before.get(queue, 0) :]]
            for queue, spans in estimate.timelines.items()
        }
    assert sorted(filter(None, seen.values())) == sorted(expected.values())


def test_a_capture_only_takes_time_of_the_host(cuda):
    x = torch.ones(2**20, device="cuda")
    with simgpu.clock("A100", host_cost=COST) as estimate:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            for _ in range(3):
                x.neg_()
        assert estimate.end == 3 * COST
    assert estimate.timelines == {}


@few
@given(before=st.integers(0, 2), replays=st.integers(1, 3))
def test_a_replay_begins_when_its_stream_is_free(cuda, before, replays):
    """Graphs that are launched one after the other run one after the other, on one stream."""
    with simgpu.clock("A100", host_cost=2**-30, launch_gap=GAP) as estimate:
        graph, tensors = captured([("kernel", 1, 2**20), ("kernel", 0, 2**10)])
        torch.cuda.synchronize()
        now = estimate.now
        for _ in range(before):
            tensors[0, 2**20].neg_()
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
    each = GAP + 2 * 2**20 / BYTES_PER_SECOND
    assert estimate.now == pytest.approx(now + 2**-30 + (before + replays) * each, rel=1e-12)


def test_a_graph_copies_from_pinned_memory_and_waits_for_the_link(cuda):
    source, size = torch.ones(2**18).pin_memory(), 2**20
    target, other = (torch.zeros(2**18, device="cuda") for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    with simgpu.clock("A100", links(), host_cost=COST, launch_gap=GAP) as estimate:
        with torch.cuda.graph(graph):
            target.copy_(source, non_blocking=True)
            target.neg_()
        torch.cuda.synchronize()
        now, copy = estimate.now, UP[1] + size / UP[0]
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            other.copy_(source, non_blocking=True)
        graph.replay()
        assert estimate.now == now + 2 * COST
        torch.cuda.synchronize()
    kernel = GAP + 2 * size / BYTES_PER_SECOND
    assert estimate.now == now + COST + copy + copy + kernel
