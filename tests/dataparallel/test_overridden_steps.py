"""A call looks at its devices and its module once, and uses the steps that a subclass replaces."""

import pytest
import torch
from torch import nn

import dataparallel
from tests.support.observe import plain, values


def net_on(device):
    net = nn.Sequential(nn.Linear(3, 3, dtype=torch.float64), nn.ReLU()).to(device)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(values(parameter.shape, "float64", 1, span=3))
    return net


def rows(device, count=8):
    return values((count, 3), "float64", 5, span=3).to(device)


def replaced_by_a_subclass(net, devices, name, step):
    kind = type("Replaced", (dataparallel.DataParallel,), {name: step})
    return kind(net, devices)


def replaced_in_the_object(net, devices, name, step):
    model = dataparallel.DataParallel(net, devices)
    setattr(model, name, lambda *args: step(model, *args))
    return model


@pytest.mark.parametrize("replace", [replaced_by_a_subclass, replaced_in_the_object])
@pytest.mark.parametrize("name", ["scatter", "replicate", "parallel_apply", "gather"])
@pytest.mark.devices(3)
def test_replaced_step_gets_the_given_arguments(devices, replace, name):
    """With the ids as they were passed, and the original behind it gives what it always gives."""
    called = []
    original = getattr(dataparallel.DataParallel, name)

    def step(self, *args):
        called.append(args)
        return original(self, *args)

    net = net_on(devices[0])
    ids = [device.index for device in devices]
    model = replace(net, ids, name, step)
    assert plain(model(rows(devices[0], 5))) == plain(net(rows(devices[0], 5)))
    assert len(called) == 1
    expected = {"scatter": ids, "replicate": ids, "gather": ids[0]}
    if name in expected:
        assert called[0][-1] == expected[name]


@pytest.mark.devices(3)
def test_a_step_patched_into_the_class_is_called(devices, monkeypatch):
    model = dataparallel.DataParallel(net_on(devices[0]), devices)
    monkeypatch.setattr(dataparallel.DataParallel, "gather", lambda self, outputs, target: "mine")
    assert model(rows(devices[0])) == "mine"


@pytest.mark.parametrize("name", ["scatter", "replicate"])
@pytest.mark.devices(3)
def test_a_change_by_a_replaced_step_is_seen_in_the_same_call(devices, name):
    """The module that was checked at the begin of a call is checked again where it may differ."""
    original = getattr(dataparallel.DataParallel, name)

    class Exchanging(dataparallel.DataParallel):
        pass

    def step(self, *args):
        self.module[0].bias = nn.Parameter(self.module[0].bias.detach() + 1)
        return original(self, *args)

    setattr(Exchanging, name, step)
    net = net_on(devices[0])
    model = Exchanging(net, devices)
    first = net[0].bias.detach().clone()
    for calls in (1, 2):
        out = model(rows(devices[0]))
        assert plain(net[0].bias) == plain(first + calls)
        assert plain(out) == plain(net(rows(devices[0])))
