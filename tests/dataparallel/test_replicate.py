"""Replicate: where the copies are, what they share, and what flows back."""

import sys
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from tests.support import strategies
from tests.support.observe import plain, same_memory, values
from tests.support.training import exact


class Branched(nn.Module):
    """A network with a tie, a frozen part, an unused slot, buffers and nesting."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3, bias=False))
        self.head = nn.Linear(3, 3)
        self.head.weight = self.body[0].weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_parameter("unused", None)
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("hidden", torch.ones(1, dtype=torch.int64), persistent=False)
        self.again = self.body[2]
        with torch.no_grad():
            for k, parameter in enumerate(self.parameters()):
                parameter.copy_(values(tuple(parameter.shape), parameter.dtype, seed + k, span=5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(self.body(x))) * self.frozen + self.count[0]


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by their name as attributes, ties under each of their names."""
    found = {}
    for path, child in module.named_modules(remove_duplicate=False):
        names = [*child._parameters, *child._buffers]
        for name in names:
            value = getattr(child, name)
            if value is not None:
                found[f"{path}.{name}"] = value
    return found


@given(data=st.data(), seed=st.integers(0, 100), detach=st.booleans(), training=st.booleans())
def test_each_replica_is_complete_and_on_its_device(devices, data, seed, detach, training):
    """With the ties and the mode of the module, which is left as it was."""
    targets = data.draw(strategies.device_lists(devices))
    module = Branched(seed).to(targets[0]).train(training)
    original = tensors_of(module)
    replicas = dataparallel.replicate(module, targets, detach)
    assert len(replicas) == len(targets)
    for replica, target in zip(replicas, targets, strict=True):
        copied = tensors_of(replica)
        assert set(copied) == set(original)
        assert [*dict(replica.named_parameters())] == [*dict(module.named_parameters())]
        assert {tensor.device for tensor in copied.values()} == {target}
        assert {n: plain(t) for n, t in copied.items()} == {
            n: plain(t) for n, t in original.items()
        }
        assert [type(child) for child in replica.modules()] == [
            type(child) for child in module.modules()
        ]
        assert replica is not module
        assert replica.head.weight is replica.body[0].weight
        assert replica.again is replica.body[2]
        assert {child.training for child in replica.modules()} == {training}
    left = tensors_of(module)
    assert left.keys() == original.keys()
    assert all(left[name] is tensor for name, tensor in original.items())


@given(data=st.data())
def test_only_the_first_replica_shares_buffers(devices, data):
    """What replica 0 writes into a buffer lasts; what the others write does not."""
    targets = data.draw(strategies.device_lists(devices))
    module = Branched().to(targets[0])
    for k, replica in enumerate(dataparallel.replicate(module, targets)):
        assert same_memory(replica.count, module.count) == (k == 0)
        assert same_memory(replica.hidden, module.hidden) == (k == 0)
        assert replica.count.grad_fn is None
        assert not replica.count.requires_grad


KINDS = {"ours": dataparallel.DataParallel, "theirs": nn.DataParallel}


class Ranges(nn.Module):
    """Learns at its first call how many columns there are, as observers of quantization do."""

    def __init__(self, held):
        super().__init__()
        self.register_buffer("least", torch.full((held,), 9.0))
        self.slope = nn.Parameter(torch.ones(()))

    def forward(self, x):
        low = x.amin(0)
        if self.least.numel() == 0:
            self.least.resize_(low.shape).fill_(9.0)
        self.least.copy_(torch.minimum(self.least, low))
        return self.slope * (x - self.least)


@pytest.mark.parametrize("name", sorted(KINDS))
@given(
    count=st.integers(1, 4),
    columns=st.integers(1, 4),
    held=st.integers(0, 1),
    grad=st.booleans(),
    cached=st.booleans(),
)
def test_resize_in_the_first_replica_is_kept(simulated, name, count, columns, held, grad, cached):
    """The published case is PyTorch's own, test_qat_data_parallel of its quantization tests."""
    module = Ranges(held and columns).to(simulated[0])
    options = {"cache_parameters": cached} if name == "ours" else {}
    parallel = KINDS[name](module, list(range(count)), **options)
    rows = torch.arange(8.0 * columns, device=simulated[0]).reshape(8, columns).flip(0)
    with torch.set_grad_enabled(grad):
        parallel(rows)
        again = parallel(rows)
    first = rows.chunk(count)[0].amin(0)
    assert module.least.tolist() == torch.minimum(first, first.new_tensor(9.0)).tolist()
    assert again.shape == rows.shape


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
