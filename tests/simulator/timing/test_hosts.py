"""The host's time: threads of replicas, the threads of a backward pass, and no chance in it."""

from functools import partial

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dataparallel
import simgpu
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
