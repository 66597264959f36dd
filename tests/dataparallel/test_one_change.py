"""One change of a module between two calls: the second call sees it, there and in the gradients.

`test_plan_reuse` makes many changes in any order; here stands each that a plan could outlive.
"""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

import dataparallel
from tests.support import strategies
from tests.support.observe import plain, values
from tests.support.training import few


class Shown(nn.Module):
    """What it computes shows names, dtype and layout of what it has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=torch.float64)
        self.kernel = nn.Parameter(torch.ones(2, 2, 1, 2, dtype=torch.float64))
        self.register_buffer("shift", torch.full((3,), 3.0, dtype=torch.float64))
        self.extra = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.last = nn.Linear(3, 3, dtype=torch.float64)
        with torch.no_grad():
            for k, parameter in enumerate(self.parameters()):
                parameter.copy_(values(tuple(parameter.shape), "float64", k, span=3))

    def forward(self, x):
        x = self.layer(x)
        for sign, name in ((1, "extra"), (-1, "other")):
            value = getattr(self, name, None)
            x = x if value is None else x + sign * value
        x = x if self.shift is None else x * self.shift
        for factor, name in ((1, "last"), (2, "final")):
            child = getattr(self, name, None)
            x = x if child is None else child(x) * factor
        return x + self.kernel.double().sum() + self.kernel.stride(1) + self.kernel.itemsize


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


def rename(net, old, new):
    value = getattr(net, old)
    delattr(net, old)
    setattr(net, new, value)


def exchange_data(net, change):
    net.kernel.data = change(net.kernel.data)


CHANGES = {
    "parameter renamed": lambda net: rename(net, "extra", "other"),
    "submodule renamed": lambda net: rename(net, "last", "final"),
    "parameter becomes None": lambda net: setattr(net, "extra", None),
    "buffer becomes None": lambda net: setattr(net, "shift", None),
    "submodule becomes None": lambda net: setattr(net, "last", None),
    "channels_last": lambda net: exchange_data(
        net, lambda data: data.to(memory_format=torch.channels_last)
    ),
    "another dtype": lambda net: exchange_data(net, torch.Tensor.float),
    "full backward hook": lambda net: net.layer.register_full_backward_hook(
        lambda module, grad_in, grad_out: (grad_in[0] * 2,)
    ),
    "full backward pre-hook": lambda net: net.last.register_full_backward_pre_hook(
        lambda module, grad_out: (grad_out[0] * 3,)
    ),
    "forward pre-hook": lambda net: net.register_forward_pre_hook(
        lambda module, args: (args[0] * 3,)
    ),
    "parametrization": lambda net: parametrize.register_parametrization(
        net.layer, "weight", Doubled()
    ),
}


def seen(net, model, x):
    """The output, and the gradients of the input and of all parameters."""
    x = x.clone().requires_grad_()
    net.zero_grad()
    out = model(x)
    out.sum().backward()
    grads = [x.grad, *(parameter.grad for parameter in net.parameters())]
    return plain(out), [None if grad is None else plain(grad) for grad in grads]


@pytest.mark.parametrize("name", CHANGES)
@few
@given(data=st.data(), cached=st.booleans())
def test_the_next_call_sees_it(devices, name, data, cached):
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    net = Shown().to(targets[0])
    model = dataparallel.DataParallel(net, targets, cache_parameters=cached)
    x = values((2 * len(targets), 3), "float64", span=3).to(targets[0])
    first = seen(net, model, x)
    with torch.no_grad():
        model(x)
    CHANGES[name](net)
    single = copy.deepcopy(net)
    expected = seen(single, single, x)
    assert first != expected  # else the change would not show
    with torch.no_grad():
        assert plain(model(x)) == expected[0]
    assert seen(net, model, x) == expected
