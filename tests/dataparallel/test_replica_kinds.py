"""Replicas of modules that are copied, or take attributes, in a way of their own."""

import sys
import warnings

import pytest
import torch
from torch import nn

import dataparallel
from tests.support.observe import plain, values
from tests.support.training import exact


class Noting(nn.Module):
    """Hears of each attribute that is set, as torch.nn.RNNBase does of its weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.bias = None
        self.register_parameter("unused", None)
        self.register_buffer("shift", torch.full((3,), 2.0))
        self.register_buffer("missing", None)
        self.inner = nn.Linear(3, 3)
        self.register_module("nobody", None)
        self.last = nn.ReLU()

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        where = value.device if isinstance(value, torch.Tensor) else None
        self.__dict__["heard"] = {**self.__dict__.get("heard", {}), name: where}

    def forward(self, x):
        return self.last(self.inner(x)) * self.weight + self.shift


class Copied(nn.Module):
    """Says what its replica is."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("shift", torch.full((3,), 2.0))
        self.register_buffer("missing", None)
        self.child = Noting()
        self.register_module("nobody", None)

    def _replicate_for_data_parallel(self):
        replica = super()._replicate_for_data_parallel()
        replica.copied = True
        return replica

    def forward(self, x):
        return self.child(x) * self.weight + self.shift


@pytest.mark.devices(3)
@pytest.mark.parametrize("kind", [Noting, Copied])
def test_a_replica_has_all_of_it_on_its_device(devices, kind):
    module = kind().to(devices[0])
    for parameter in module.parameters():
        parameter.data = values(tuple(parameter.shape), "float32", 3).to(devices[0])
    replicas = dataparallel.replicate(module, devices[:3])
    for replica, device in zip(replicas, devices, strict=False):
        assert type(replica) is kind
        assert getattr(replica, "copied", False) == (kind is Copied)
        for registered in ("named_parameters", "named_buffers", "named_modules"):
            mine, theirs = (list(getattr(it, registered)()) for it in (replica, module))
            assert [name for name, _ in mine] == [name for name, _ in theirs]
            if registered != "named_modules":
                assert {tensor.device for _, tensor in mine} == {device}
                assert [plain(t) for _, t in mine] == [plain(t) for _, t in theirs]
        noting = replica if kind is Noting else replica.child
        assert (noting._modules["nobody"], noting._buffers["missing"]) == (None, None)
        assert (noting._parameters["unused"], noting.bias) == (None, None)
        assert noting.heard["weight"] == noting.heard["shift"] == device
        assert "missing" not in noting.heard  # what is None is no news
        assert not {"weight", "shift", "missing", "unused", "inner"} & set(noting.__dict__)
        assert replica._modules.keys() == module._modules.keys()
    assert module.state_dict().keys() == kind().state_dict().keys()


@pytest.mark.devices(3)
@pytest.mark.parametrize("kind", [Noting, Copied])
@pytest.mark.parametrize("cached", [False, True])
def test_it_trains_as_on_one_device(devices, kind, cached):
    module = exact(kind(), devices[0])
    x = values((6, 3), "float32", 1).to(devices[0])
    parallel = dataparallel.DataParallel(module, devices[:3], cache_parameters=cached)
    seen = []
    for call in (module, parallel):
        module.zero_grad()
        call(x).sum().backward()
        with torch.no_grad():
            seen.append([plain(call(x)), *(plain(p.grad) for p in module.parameters())])
    assert seen[0] == seen[1]


class Forgetful(nn.Linear):
    def forward(self, x):
        self.zero_grad()
        return super().forward(x)


class ForgetfulCopy(Forgetful):
    def _replicate_for_data_parallel(self):
        return super()._replicate_for_data_parallel()


@pytest.mark.parametrize("kind", [Forgetful, ForgetfulCopy])
def test_zero_grad_in_a_replica_warns(devices, kind):
    """A replica says that it is one, as torch.nn.Module asks of it: the call has no effect."""
    module = kind(3, 3).to(devices[0])
    parallel = dataparallel.DataParallel(module, devices[:2])
    x = torch.ones(4, 3, device=devices[0])
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            parallel(x).sum().backward()
        assert sum("zero_grad() from a module" in str(each.message) for each in caught) == 2
    assert module.bias.grad.tolist() == [8.0] * 3


@pytest.mark.devices(2)
def test_nothing_has_to_be_compiled_before(devices):
    """A program that never asks for torch.compile never imports what it is made of."""
    module = nn.Linear(3, 3).to(devices[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(sys.modules, "torch._dynamo.eval_frame", raising=False)
        assert len(dataparallel.replicate(module, devices[:2])) == 2


@pytest.mark.devices(2)
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripted_modules_are_replicated_unless_others_are_in_them(devices):
    module = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU())).to(devices[0])
    x = values((4, 3), "float32", 1).to(devices[0])
    assert plain(dataparallel.DataParallel(module, devices[:2])(x)) == plain(module(x))
    around = nn.Sequential(module, nn.Linear(3, 3)).to(devices[0])
    assert len(dataparallel.replicate(around, devices[:2])) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(module), "modules", lambda self: iter((self, nn.Linear(3, 3))))
        with pytest.raises(RuntimeError) as caught:
            dataparallel.replicate(module, devices[:2])
    assert str(caught.value) == (
        "Cannot replicate network where python modules are children of ScriptModule"
    )
