"""Mistakes around DataParallel, PyTorch's and ours: which of them SIMGPU_STRICT=1 reports.

An error, a warning, or nothing, where the same calls are right in another program.
"""

import warnings

import pytest
import torch
from torch import nn

import dataparallel
import simgpu
from simgpu.errors import ReplicaStateWarning, SilentBugWarning


class Net(nn.Module):
    """A linear layer, whose forward calls `extra` with itself and the input."""

    def __init__(self, extra):
        super().__init__()
        self.layer, self.extra, self.count, self.seen = nn.Linear(2, 2), extra, 0, []
        self.register_buffer("total", torch.zeros(1))
        self.scale = torch.ones(2, device="cuda:0")  # no buffer

    def forward(self, x):
        return self.extra(self, self.layer(x))


def counts_calls(net, y):
    net.count += 1
    return y


def assigns_a_buffer(net, y):
    net.total = net.total + y.detach().sum()
    return y


def keeps_an_output(net, y):
    net.last = y
    return y


def makes_a_tensor_on_one_device(net, y):
    return y + torch.ones(2, device="cuda:0")


def has_a_constant_on_one_device(net, y):
    return y * net.scale


def has_the_batch_last(net, y):
    return y.t()


def collects_in_a_list(net, y):
    net.seen.append(y)
    return y


BUGS = {
    counts_calls: ReplicaStateWarning,
    assigns_a_buffer: ReplicaStateWarning,
    keeps_an_output: ReplicaStateWarning,
    makes_a_tensor_on_one_device: RuntimeError,
    has_a_constant_on_one_device: RuntimeError,
    has_the_batch_last: (RuntimeError, ValueError),
    collects_in_a_list: None,  # an error where the program stacks them
}


@pytest.mark.filterwarnings("ignore:Was asked to gather")
@pytest.mark.parametrize("library", [nn.DataParallel, dataparallel.DataParallel])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_bug_is_reported(bug, strict, library, monkeypatch):
    monkeypatch.setenv("SIMGPU_STRICT", str(int(strict)))
    expected = BUGS[bug]
    with simgpu.as_cuda(2), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        net = Net(bug).cuda()
        if expected in (None, ReplicaStateWarning):
            library(net)(torch.ones(3, 2, device="cuda"))
        else:
            with pytest.raises(expected):
                library(net)(torch.ones(3, 2, device="cuda"))
    found = {each.category for each in caught if issubclass(each.category, SilentBugWarning)}
    assert found == ({expected} if strict and expected is ReplicaStateWarning else set())


@pytest.mark.parametrize("library", [nn.DataParallel, dataparallel.DataParallel])
def test_layers_of_torch_that_write_into_replicas_are_silent(monkeypatch, library):
    """Batch norm does, by design: the statistics of the first replica are kept."""
    monkeypatch.setenv("SIMGPU_STRICT", "1")
    layers = nn.BatchNorm1d(2), nn.utils.spectral_norm(nn.Linear(2, 2)), nn.LSTM(2, 2)
    with simgpu.as_cuda(2), warnings.catch_warnings():
        warnings.simplefilter("error", SilentBugWarning)
        for layer in layers:
            library(nn.Sequential(layer).cuda())(torch.ones(4, 2, device="cuda"))
        Net(counts_calls).cuda()(torch.ones(4, 2, device="cuda"))  # no replica


@pytest.mark.parametrize("library", [nn.DataParallel, dataparallel.DataParallel])
def test_attribute_set_by_a_hook_is_named_with_its_path(monkeypatch, library):
    """The usual way to look at features; two calls, of which each has its warning."""
    monkeypatch.setenv("SIMGPU_STRICT", "1")
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    net[1][0].register_forward_hook(lambda layer, _, output: setattr(layer, "seen", output))
    with simgpu.as_cuda(2):
        parallel = library(net.cuda())
        for _ in range(2):
            with pytest.warns(ReplicaStateWarning, match=r"'seen' into '1\.0' of a replica"):
                parallel(torch.ones(4, 2, device="cuda"))
