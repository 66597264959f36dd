"""Tensors of subclasses: whose Python is called, and which class results have, ours and theirs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import parallel as theirs
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import dataparallel as ours
from tests.support.oracle import numbers

METADATA = {"__get__", "dim", "size", "stride", "numel", "element_size", "get_device"}
METADATA |= {"is_complex", "is_contiguous", "storage_offset"}


class Distribution(torch.Tensor):
    """A tensor that knows how it was drawn, as in a published program: its copies do not."""

    def __init__(self, *_):
        self.kind = None

    def draw(self, kind):
        self.kind = kind
        return self.normal_()

    def refuse(self, *_, **__):
        raise AssertionError(f"{self.kind} is asked to move")

    to = chunk = split_with_sizes = copy_ = cat = refuse


class Watching(torch.Tensor):
    """A tensor that notes which functions see it."""

    seen = ()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Watching.seen += (function.__name__,)
        return super().__torch_function__(function, types, args, kwargs or {})


class Mode(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


def rows(kind, device):
    return torch.arange(8.0, device=device).view(4, 2).as_subclass(kind)


def on_each(kind, devices):
    return [rows(kind, device) for device in devices]


CALLS = {
    "comm.scatter": lambda m, kind, d: m.comm.scatter(rows(kind, d[0]), numbers(d)),
    "comm.scatter from the CPU": lambda m, kind, d: m.comm.scatter(rows(kind, "cpu"), numbers(d)),
    "comm.scatter of sizes": lambda m, kind, d: m.comm.scatter(
        rows(kind, d[0]), numbers(d), [1, 3, *[0] * (len(d) - 2)]
    ),
    "comm.scatter into tensors": lambda m, kind, d: m.comm.scatter(
        rows(kind, d[0]), dim=1, out=[torch.zeros(4, 1, device=x) for x in d[:2]]
    ),
    "comm.broadcast": lambda m, kind, d: m.comm.broadcast(rows(kind, d[0]), numbers(d)),
    "comm.broadcast into tensors": lambda m, kind, d: m.comm.broadcast(
        rows(kind, d[0]), out=on_each(kind, d)
    ),
    "comm.broadcast_coalesced": lambda m, kind, d: m.comm.broadcast_coalesced(
        [rows(kind, d[0]), rows(kind, d[0]).int()], numbers(d)
    ),
    "comm.gather": lambda m, kind, d: m.comm.gather(on_each(kind, d), 0, d[0]),
    "comm.gather into a tensor": lambda m, kind, d: m.comm.gather(
        on_each(kind, d), 0, out=torch.zeros(4 * len(d), 2, device=d[0])
    ),
    "scatter": lambda m, kind, d: m.scatter(rows(kind, d[0]), numbers(d)),
    "scatter to its device": lambda m, kind, d: m.scatter(rows(kind, d[0]), numbers(d[:1])),
    "scatter of a structure": lambda m, kind, d: m.scatter({"x": [rows(kind, "cpu")]}, numbers(d)),
    "gather": lambda m, kind, d: m.gather(on_each(kind, d), d[0]),
}


def reported(call):
    """Classes, devices and values of what a call returns."""
    return [(type(x), x.device, x.tolist()) for x in tree_leaves(call())]


@pytest.mark.devices(2, distinct=True, at_least=True)  # theirs shares memory on one device
@pytest.mark.parametrize("name", CALLS)
def test_results_have_their_class(devices, name):
    found = [reported(lambda m=m: CALLS[name](m, Distribution, devices)) for m in (ours, theirs)]
    assert found[0] == found[1]


@pytest.mark.devices(2, at_least=True)
@pytest.mark.parametrize("module", [ours, theirs], ids=["ours", "theirs"])
@pytest.mark.parametrize("name", CALLS)
def test_a_class_and_a_mode_see_metadata_only(devices, name, module):
    with Mode() as mode:
        CALLS[name](module, torch.Tensor, devices)
    beside = {"ones", "zeros", "arange", "view", "as_subclass", "int", "_set_grad_enabled"}
    assert set(mode.seen) <= METADATA | beside | {"device", "record_stream"}
    Watching.seen = ()
    CALLS[name](module, Watching, devices)
    assert set(Watching.seen) <= METADATA | {"int", "_set_grad_enabled"}


@pytest.mark.devices(2, at_least=True)
@pytest.mark.parametrize("module", [ours, theirs], ids=["ours", "theirs"])
@given(batch=st.integers(1, 9), trains=st.booleans())
def test_a_model_is_called_with_tensors_of_a_subclass(devices, module, batch, trains):
    """Reported of a published program, whose noise is of a class that overrides `to`."""

    class Model(nn.Linear):
        def forward(self, noise):
            assert type(noise) is torch.Tensor
            return super().forward(noise)

    noise = Distribution(torch.zeros(batch, 3, device=devices[0])).draw("normal")
    net = Model(3, 2).to(devices[0])
    wrapped = module.DataParallel(net, device_ids=devices)
    with torch.set_grad_enabled(trains):
        out = wrapped(noise)
    expected = nn.functional.linear(torch.Tensor.detach(noise), net.weight, net.bias)
    torch.testing.assert_close(out, expected.as_subclass(torch.Tensor))
    if trains:
        out.sum().backward()
        assert type(net.weight.grad) is torch.Tensor
