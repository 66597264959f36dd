"""What kept copies save: of parameters and buffers, only what has changed is sent again.

Bytes between devices, which only simulated ones count. That results are right whatever is sent is
what `test_kept_parameters` is about.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

import dataparallel
import simgpu
from tests.support import strategies
from tests.support.observe import values
from tests.support.training import few


class Two(nn.Module):
    """Two layers with statistics, a buffer of its own, and what some replica writes into."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.other = nn.BatchNorm1d(3)
        self.register_buffer("shift", torch.zeros(3))
        self.register_buffer("whole", torch.zeros(5, dtype=torch.int64))
        self.writes = ""
        self.eval()

    def forward(self, x, at):
        if self.writes and at[0] == 1:
            with torch.no_grad():
                of, _, name = self.writes.partition(".")
                getattr(self.get_submodule(of), name).add_(1)
        return self.other(self.norm(self.layer(x) + self.shift))


EVERYTHING = sorted(Two().state_dict())
STATISTICS = ["running_mean", "running_var", "num_batches_tracked"]
OF_NORM = [f"norm.{name}" for name in STATISTICS]
OF_OTHER = [f"other.{name}" for name in STATISTICS]


def step(net, parallel):
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD([net.layer.bias], lr=1.0).step()


def exchange_devices(net, parallel):
    parallel.device_ids = [parallel.device_ids[0], *parallel.device_ids[:0:-1]]


# What is done between two calls, and what the second one sends.
DONE = {
    "nothing": (lambda net, parallel: None, []),
    "a parameter": (lambda net, parallel: net.layer.weight.add_(1), ["layer.weight"]),
    "two parameters": (
        lambda net, parallel: (net.layer.bias.add_(1), net.norm.weight.add_(1)),
        ["layer.bias", "norm.weight"],
    ),
    "a parameter, often": (
        lambda net, parallel: [net.layer.weight.add_(1) for _ in range(300)],
        ["layer.weight"],
    ),
    "other memory": (
        lambda net, parallel: setattr(net.layer.bias, "data", net.layer.bias.data.clone()),
        ["layer.bias"],
    ),
    "one of some statistics": (lambda net, parallel: net.norm.running_var.add_(1), OF_NORM),
    "a buffer": (lambda net, parallel: net.shift.add_(1), ["shift", "whole"]),
    "a step": (step, EVERYTHING),
    "a call in training": (lambda net, parallel: net.other.train(), OF_OTHER),
    "other devices": (exchange_devices, EVERYTHING),
    "a layer is frozen": (
        lambda net, parallel: net.layer.requires_grad_(False),
        EVERYTHING,
    ),
}


def bytes_sent(parallel, x, at, mode=torch.no_grad):
    """Between devices, besides the chunks of the input and the outputs."""
    with mode(), simgpu.trace() as trace:
        parallel(x, at)
    moved = len(x) - len(x) // len(parallel.device_ids)
    return trace.bytes_copied() - moved * (3 + 3) * 4 - moved * 8


def expected(net, names, devices):
    state = net.state_dict()
    return (devices - 1) * sum(state[name].nbytes for name in names)


@pytest.mark.parametrize("name", DONE)
@few
@given(data=st.data(), mode=st.sampled_from((torch.no_grad, torch.inference_mode)))
def test_only_changed_tensors_are_sent(simulated, name, data, mode):
    targets = data.draw(strategies.device_lists(simulated, min_size=3, max_size=4))
    change, sent = DONE[name]
    net = Two().to(targets[0])
    parallel = dataparallel.DataParallel(net, targets, cache_parameters=True)
    x = values((2 * len(targets), 3), "float32").to(targets[0])
    at = torch.arange(len(targets)).repeat_interleave(2).to(targets[0])
    assert bytes_sent(parallel, x, at, mode) == expected(net, EVERYTHING, len(targets))
    with torch.no_grad():
        change(net, parallel)
    for again in (sent, OF_OTHER if name == "a call in training" else []):
        if name == "a call in training" and again is sent:
            bytes_sent(parallel, x, at, mode)  # it is the call that may have written them
        assert bytes_sent(parallel, x, at, mode) == expected(net, again, len(targets))


def test_steps_are_counted_once(simulated):
    """However many calls keep copies, optimizers are watched by one of them."""
    x = values((4, 3), "float32").to(simulated[0])
    at = torch.zeros(4, dtype=torch.int64, device=simulated[0])
    counts = []
    for _ in range(2):
        net = Two().to(simulated[0])
        parallel = dataparallel.DataParallel(net, simulated[:2], cache_parameters=True)
        bytes_sent(parallel, x, at)
        counts.append(len(_global_optimizer_post_hooks))
    assert counts[0] == counts[1] > 0


@few
@given(data=st.data(), fewer=st.integers(1, 3))
def test_fewer_replicas_need_nothing_and_all_of_them_all(simulated, data, fewer):
    """Copies on devices that a call does not use are lost with it."""
    targets = data.draw(strategies.device_lists(simulated, min_size=4, max_size=4))
    net = Two().to(targets[0])
    parallel = dataparallel.DataParallel(net, targets, cache_parameters=True)
    x = values((8, 3), "float32").to(targets[0])
    at = torch.zeros(8, dtype=torch.int64, device=targets[0])
    bytes_sent(parallel, x, at)
    with torch.no_grad(), simgpu.trace() as trace:
        parallel(x[:fewer], at[:fewer])
    assert trace.bytes_copied() == (fewer - 1) * ((3 + 3) * 4 + 8)
    assert bytes_sent(parallel, x, at) == 0
