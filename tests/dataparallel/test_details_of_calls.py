"""What a caller can see of a call besides its results: attributes, identities, replaced steps."""

import dataclasses
from unittest import mock

import pytest
import torch
from torch import nn

import dataparallel
from tests.support.observe import plain, values


class Here(nn.Module):
    """Makes a tensor without saying where."""

    def forward(self, *args, kind, **kwargs):
        return torch.zeros(1, device=kind).device


@pytest.mark.devices(3, distinct=True)
def test_device_comes_from_positional_arguments_first(devices):
    kind = devices[0].type
    first, second = (torch.ones(1, device=device) for device in devices[1:])
    keywords = {"kind": kind, "more": [second]}
    calls = [(first,), (3, {"x": (first,)}), ()]
    found = dataparallel.parallel_apply([Here()] * 3, calls, [keywords] * 3)
    assert found == [devices[1], devices[1], devices[2]]


@pytest.mark.devices(2, distinct=True)
def test_a_replica_on_a_device_without_index_is_on_the_current_one(devices):
    """An error names its number."""
    kind = devices[0].type
    words = rf"in replica 0 on device {devices[1].index}\."
    with torch.get_device_module(kind).device(devices[1]):
        found = dataparallel.parallel_apply(
            [Here()] * 2, [()] * 2, [{"kind": kind}] * 2, [torch.device(kind), None]
        )
        with pytest.raises(TypeError, match=words):  # none says where
            dataparallel.parallel_apply([Here()] * 2, [()] * 2, None, [torch.device(kind)] * 2)
    assert found == [devices[1], devices[1]]


class Counted(nn.Module):
    """Says how many arguments it was given."""

    def forward(self, *args, **kwargs):
        return len(args), sorted(kwargs)


@pytest.mark.devices(2)
@pytest.mark.parametrize("count", [1, 2])
def test_no_input_is_no_argument(devices, count):
    call = dataparallel.data_parallel
    assert call(Counted(), None, devices[:count]) == (0, [])
    assert call(Counted(), None, devices[:count], module_kwargs={"x": 3}) == (0, ["x"])
    assert call(Counted(), (), devices[:count]) == (0, [])
    assert call(Counted(), (None,), devices[:count]) == (1, [])
    assert call(Counted(), 3, devices[:count]) == (1, [])


class Mixed(nn.Module):
    """The first rows look up a table, whose gradient is sparse then; others multiply by it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(values((3, 2), "float64", 5))

    def forward(self, rows, looked_up):
        if looked_up[0]:
            return nn.functional.embedding(rows, self.table, sparse=True)
        return nn.functional.one_hot(rows, 3).double() @ self.table


@pytest.mark.devices(3)
@pytest.mark.parametrize("looked_up", [[1, 0, 0], [0, 1, 1], [0, 0, 1], [1, 1, 1]])
def test_gradient_is_sparse_only_if_all_replicas_have_it_sparse(devices, looked_up):
    net = Mixed().to(devices[0])
    rows = torch.tensor([0, 1, 1, 2, 2, 2])
    repeated = torch.tensor(looked_up).repeat_interleave(2)
    dataparallel.DataParallel(net, devices[:3])(rows, repeated).sum().backward()
    assert net.table.grad.is_sparse == all(looked_up)
    assert plain(net.table.grad.to_dense()) == [[1, 1], [2, 2], [3, 3]]


@dataclasses.dataclass
class Partly:
    """One field of it may never be set."""

    x: torch.Tensor
    later: torch.Tensor = dataclasses.field(init=False)
    name: str = "one"


@pytest.mark.devices(2)
def test_unset_field_stays_unset(devices):
    x = values((4, 3), "float32", 1).to(devices[0])
    chunks = dataparallel.scatter(Partly(x), devices[:2])
    whole = dataparallel.gather(chunks, devices[0])
    for each in (*chunks, whole):
        assert (hasattr(each, "later"), each.name) == (False, "one")
    assert plain(whole.x) == plain(x)


@pytest.mark.devices(2)
def test_an_undivided_tensor_on_its_device_is_returned(devices):
    """With and without gradients; arguments too."""
    for grad in (False, True):
        x = values((4, 3), "float32", 1).to(devices[0]).requires_grad_(grad)
        assert dataparallel.scatter(x, devices[:1])[0] is x
        args, keywords = dataparallel.scatter_kwargs((x, [x]), {"y": x}, devices[:1])
        assert args[0][0] is x
        assert args[0][1][0] is keywords[0]["y"] is x


@pytest.mark.devices(2)
def test_no_arguments_at_all_are_no_replicas(devices):
    """An argument that is false is one."""
    x = values((4, 3), "float32", 1).to(devices[0])
    for nothing in (None, (), []):
        assert dataparallel.scatter_kwargs(nothing, None, devices[:2]) == ((), ())
        assert dataparallel.scatter_kwargs(nothing, {}, devices[:2]) == ((), ())
        args, keywords = dataparallel.scatter_kwargs(nothing, {"x": x}, devices[:2])
        assert args == ((), ())
        assert [plain(each["x"]) for each in keywords] == [plain(x[:2]), plain(x[2:])]
    args, keywords = dataparallel.scatter_kwargs(torch.zeros(1), None, devices[:1])
    assert (plain(args[0]), keywords) == ([0.0], ({},))
    assert dataparallel.scatter_kwargs({}, None, devices[:2]) == (({}, {}), ({}, {}))


@pytest.mark.devices(3)
def test_a_step_may_apply_fewer_replicas(devices):
    net = nn.Linear(3, 3, bias=False).to(devices[0])
    net.weight.data.copy_(
        values((3, 3), "float32", 2)
    )  # a product of one row sums in another order
    parallel = dataparallel.DataParallel(net, devices[:3])
    x = values((2, 3), "float32", 1).to(devices[0])
    inputs, keywords = parallel.scatter((x,), {}, parallel.device_ids[:2])
    replicas = parallel.replicate(net, parallel.device_ids[:2])
    outputs = parallel.parallel_apply(replicas, inputs, keywords)
    assert plain(parallel.gather(outputs, parallel.output_device)) == plain(net(x))


@pytest.mark.devices(2)
def test_a_large_join_takes_no_more_than_its_result(devices):
    """What is joined is never there twice."""
    kind = torch.get_device_module(devices[0].type)
    parts = [torch.ones(300_000, device=device) for device in devices[:2]]
    kind.reset_peak_memory_stats(devices[1])
    before = kind.memory_allocated(devices[1])
    whole = dataparallel.gather(parts, devices[1])
    assert whole.numel() == 600_000
    assert kind.max_memory_allocated(devices[1]) - before < 600_000 * 4 + 2**20


def test_an_index_is_of_the_type_of_the_first_tensor(devices):
    """Whatever stands before it, and be it in a sequence that is packed."""
    x = values((2, 3), "float32", 1).to(devices[0])
    packed = nn.utils.rnn.pack_sequence([x, x[:1]])
    for outputs in ([[3, None, x]] * 2, [{"a": "b", "x": packed}] * 2):
        found = dataparallel.gather(iter(outputs), devices[0].index)
        last = found[2] if isinstance(found, list) else found["x"].data
        assert last.device == devices[0]


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
    """Otherwise a call resolves its devices and looks through its module only once."""
    model = dataparallel.DataParallel(net_on(devices[0]), devices)
    look = mock.Mock(side_effect=model._current_plan)
    monkeypatch.setattr(model, "_current_plan", look)
    model(rows(devices[0]))
    assert look.call_count == 1
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
