"""The host's time: threads of replicas and of a backward pass, replays of graphs, no chance."""

from collections import defaultdict
from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dataparallel
import simgpu
from tests.simulator.timing.programs import BYTES_PER_SECOND, GAP, UP, links
from tests.support.threads import in_threads

COST = 2**-18


def train(devices, wrapper, seed=None):
    """Two steps of an MLP; returns the times of all spans and the end."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    net.to(devices[0])
    wrapped = wrapper(net, device_ids=devices)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.ones(32, 64, device=devices[0])

    def steps():
        for _ in range(2):
            optimizer.zero_grad()
            wrapped(x).square().mean().backward()
            optimizer.step()

    with simgpu.clock("A100", "nvlink") as estimate:
        if seed is None:
            steps()
        else:
            with simgpu.schedule(seed, "random"):
                steps()
    spans = {
        stream: [(span.op, span.begin, span.end) for span in each]
        for stream, each in estimate.timelines.items()
    }
    return spans, estimate.end, estimate.steps


@pytest.mark.parametrize("wrapper", [dataparallel.DataParallel, torch.nn.DataParallel])
def test_no_order_of_threads_changes_a_time(simulated, wrapper):
    expected = train(simulated[:3], wrapper)
    assert len(expected[2]) == 2

    @settings(max_examples=5)
    @given(seed=st.none() | st.integers(0, 10**6))
    def same(seed):
        assert train(simulated[:3], wrapper, seed) == expected

    same()


@given(rounds=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=3))
@example(rounds=[[1, 2], [3, 1]])
def test_threads_of_python_take_turns(simulated, rounds):
    """Also where the main thread forks again, after it has waited for those before."""
    tensors = [torch.ones(4, device=device) for device in simulated[:4]]

    def launch(tensor, count):
        for _ in range(count):
            tensor.neg_()

    launched = 1
    begins = {index: [] for index in range(1, len(tensors))}
    with simgpu.clock("A100", host_cost=COST) as estimate:
        tensors[0].neg_()
        for counts in rounds:
            in_threads(*(partial(launch, *each) for each in zip(tensors, counts, strict=False)))
            for index, count in enumerate(counts[1:], 1):
                begins[index] += [(launched + 1 + i) * COST for i in range(count)]
            launched += sum(counts)
            assert estimate.now == launched * COST
        for index, expected in begins.items():
            spans = estimate.timelines.get((index, 0), [])
            assert [span.launched for span in spans] == expected


@given(depths=st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_a_backward_pass_launches_for_all_devices_at_once(simulated, depths):
    ends = []
    for device, depth in zip(simulated, depths, strict=False):
        y = torch.ones(4, device=device, requires_grad=True)
        for _ in range(depth):
            y = y.exp()
        ends.append(y)
    gradients = [torch.ones_like(y) for y in ends]
    with simgpu.trace() as seen, simgpu.clock("A100", host_cost=COST) as estimate:
        torch.autograd.backward(ends, gradients)
        took = estimate.now
    launched = [
        sum(record.device.index == index for record in seen) for index in range(len(depths))
    ]
    assert took == max(launched) * COST


def test_a_gradient_is_launched_for_after_it_was_handed_over(simulated):
    x = torch.ones(4, device=simulated[0], requires_grad=True)
    y = (x.exp().exp().to(simulated[1]).exp().exp().exp()).to(simulated[2])
    gradient = torch.ones_like(y)
    with simgpu.clock("A100", host_cost=COST) as estimate:
        y.backward(gradient)
    times = {device: estimate.timelines[device, 0] for device in range(3)}
    for earlier, later in ((2, 1), (1, 0)):
        (copy,) = [span for span in times[earlier] if span.streams == ((earlier, 0), (later, 0))]
        own = [span for span in times[later] if span.kind == "kernel"]
        assert min(span.launched for span in own) > copy.launched


class _Sends(torch.autograd.Function):
    """Its backward pass sends the gradient to a device, and then does more where it came from."""

    @staticmethod
    def forward(ctx, x, target, more):
        ctx.source, ctx.more = x.device, more
        return x.to(target)

    @staticmethod
    def backward(ctx, grad):
        sent = grad.to(ctx.source)
        for _ in range(ctx.more):
            grad.sin()
        return sent, None, None


@given(more=st.integers(1, 30))
def test_autograd_waits_for_the_stream_that_made_a_gradient(simulated, more):
    here, there = simulated[:2]
    x = torch.ones(64, device=here, requires_grad=True)
    with simgpu.clock("A100", "nvlink") as estimate:
        y = _Sends.apply(x.exp(), there, more)
        y.backward(torch.ones(64, device=there))
    last = [span for span in estimate.timelines[1, 0] if span.op == "sin"][-1]
    [gradient] = [span for span in estimate.timelines[0, 0] if span.op == "mul.Tensor"]
    assert gradient.begin >= last.end


SLOW = 2**-15  # more than a kernel takes: launched one by one, they would wait for the host
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
    with simgpu.clock("A100", links(), host_cost=SLOW, launch_gap=GAP) as estimate:
        graph, _tensors = captured(steps)
        before = {queue: len(spans) for queue, spans in estimate.timelines.items()}
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        torch.cuda.synchronize()
        for _ in range(2):
            now = estimate.now
            begin.record()
            graph.replay()
            end.record()
            spans, until = by_hand(steps, now + SLOW)
            for stream, each in spans.items():
                expected[stream] += each
            assert estimate.now == now + SLOW
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
    with simgpu.clock("A100", host_cost=SLOW) as estimate:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            for _ in range(3):
                x.neg_()
        assert estimate.end == 3 * SLOW
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
    with simgpu.clock("A100", links(), host_cost=SLOW, launch_gap=GAP) as estimate:
        with torch.cuda.graph(graph):
            target.copy_(source, non_blocking=True)
            target.neg_()
        torch.cuda.synchronize()
        now, copy = estimate.now, UP[1] + size / UP[0]
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            other.copy_(source, non_blocking=True)
        graph.replay()
        assert estimate.now == now + 2 * SLOW
        torch.cuda.synchronize()
    kernel = GAP + 2 * size / BYTES_PER_SECOND
    assert estimate.now == now + SLOW + copy + copy + kernel
