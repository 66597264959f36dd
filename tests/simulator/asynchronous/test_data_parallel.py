"""DataParallel, ours and PyTorch's own, in legal orders of its streams."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dataparallel
import simgpu

# A step of training is long for an example.
ORDERS = 50 if settings().max_examples >= 100 else 4

wrappers = pytest.mark.parametrize(
    "wrap", [dataparallel.DataParallel, torch.nn.DataParallel], ids=["ours", "torch"]
)


@pytest.fixture
def three():
    """Three devices; PyTorch's own DataParallel asks torch.cuda for them."""
    with simgpu.as_cuda(3) as devices:
        yield devices


def trained(wrap, devices):
    """The weights after two steps on batches of the host, and an output without gradients."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))
    net = wrap(net.to(devices[0]), device_ids=list(devices))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for batch in torch.arange(96.0).div(7).sin().view(2, 12, 4):
        optimizer.zero_grad()
        net(batch).pow(2).sum().backward()
        optimizer.step()
    with torch.no_grad():
        output = net(torch.ones(9, 4)).cpu()
    return [output.tolist(), *(value.cpu().tolist() for value in net.state_dict().values())]


@wrappers
@settings(max_examples=ORDERS)
@given(seed=st.integers(0, 2**32))
@example(seed=None)
def test_training_gives_the_same_bits_in_every_order(three, wrap, seed):
    at_once = trained(wrap, three)
    with simgpu.asynchronous(seed) as queued:
        assert trained(wrap, three) == at_once
    assert queued.deferred > 3 * queued.at_once


def test_chunks_of_the_host_arrive_in_the_laziest_order(simulated):
    """They come on streams of their own, and those of the next call are allocated before these are
    used, and freed."""
    devices = simulated[:2]
    net = dataparallel.DataParallel(torch.nn.Linear(4, 2).to(devices[0]), device_ids=devices)
    with torch.no_grad():
        expected = net(torch.ones(6, 4)).tolist()
        with simgpu.asynchronous():
            outputs = [net(torch.ones(6, 4)) for _ in range(2)]
            assert [output.tolist() for output in outputs] == [expected] * 2


def test_replicas_compute_on_the_streams_of_their_caller(simulated):
    """What the caller has queued on a side stream, a replica finds there."""
    devices = simulated[:2]
    net = dataparallel.DataParallel(torch.nn.Linear(4, 2).to(devices[0]), device_ids=devices)
    expected = net(torch.ones(6, 4)).tolist()
    sides = [torch.simgpu.stream(torch.simgpu.Stream(device)) for device in devices]
    with simgpu.asynchronous(), sides[1], sides[0]:
        assert net(torch.ones(6, 4)).tolist() == expected
