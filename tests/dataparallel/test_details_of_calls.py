"""What a caller can see of a call besides its results: attributes, identities, words."""

import collections
import dataclasses
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from tests.support.observe import plain, values


class Recurrent(nn.Module):
    """A module that is copied in its own way, before one that is not."""

    def __init__(self):
        super().__init__()
        self.first = nn.RNN(3, 2, batch_first=True)
        self.last = nn.Linear(2, 2)

    def forward(self, x):
        return self.last(self.first(x)[0])


def test_layers_after_a_recurrent_one_are_replicated_too(devices):
    module = Recurrent().to(devices[0])
    for replica, device in zip(
        dataparallel.replicate(module, devices[:3]), devices[:3], strict=True
    ):
        found = {name: tensor.device for name, tensor in replica.named_parameters()}
        assert found == {name: device for name, _ in module.named_parameters()}


@pytest.mark.devices(4)
def test_the_step_scatter_cuts_as_the_call_does(devices):
    module = nn.Linear(3, 3).to(devices[0])
    parallel = dataparallel.DataParallel(module, devices[:4], chunking="balanced")
    x = values((5, 3), "float32", 1).to(devices[0])
    inputs, _ = parallel.scatter((x,), {}, parallel.device_ids)
    assert [len(chunk) for (chunk,) in inputs] == [2, 1, 1, 1]


def test_empty_containers_are_handed_on_as_they_are(devices):
    x = values((4, 3), "float32", 1).to(devices[0])
    for empty in ([], (), {}):
        chunks = dataparallel.scatter((x, empty), devices[:2])
        assert all(chunk[1] is empty for chunk in chunks)


class Failing(nn.Module):
    def forward(self, x):
        raise ValueError("planted")


def test_a_failure_on_the_cpu_names_the_cpu():
    x = torch.ones(2)
    with pytest.raises(ValueError, match="in replica 1 on device cpu"):
        dataparallel.parallel_apply(
            [nn.Identity(), Failing()], [(x,), (x,)], devices=["cpu", "cpu"]
        )


class Here(nn.Module):
    """Makes a tensor without saying where."""

    def forward(self, *args, kind, **kwargs):
        return torch.zeros(1, device=kind).device


@pytest.mark.devices(3, distinct=True)
def test_a_positional_argument_says_where_before_a_keyword_does(devices):
    kind = devices[0].type
    first, second = (torch.ones(1, device=device) for device in devices[1:])
    keywords = {"kind": kind, "more": [second]}
    calls = [(first,), (3, {"x": (first,)}), ()]
    found = dataparallel.parallel_apply([Here()] * 3, calls, [keywords] * 3)
    assert found == [devices[1], devices[1], devices[2]]


@pytest.mark.devices(2, distinct=True)
def test_a_device_without_index_is_the_current_one_of_a_replica(devices):
    kind = devices[0].type
    with torch.get_device_module(kind).device(devices[1]):
        found = dataparallel.parallel_apply(
            [Here()] * 2, [()] * 2, [{"kind": kind}] * 2, [torch.device(kind), None]
        )
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


@pytest.mark.devices(2)
@pytest.mark.parametrize("count", [1, 2])
def test_modules_without_a_child_or_with_one_twice_are_called(devices, count):
    """Their tensors are looked for in every child."""
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).to(devices[0])
    module.register_module("none", None)
    module.register_module("again", module[0])
    module.forward = lambda x: x + 1
    x = values((4, 3), "float32", 1).to(devices[0])
    assert plain(dataparallel.DataParallel(module, devices[:count])(x)) == plain(x + 1)


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
def test_a_gradient_that_is_dense_somewhere_is_dense(devices, looked_up):
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
def test_a_field_that_is_not_set_is_left_so(devices):
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
    x = values((4, 3), "float32", 1).to(devices[0])
    for nothing in (None, (), []):
        assert dataparallel.scatter_kwargs(nothing, None, devices[:2]) == ((), ())
        assert dataparallel.scatter_kwargs(nothing, {}, devices[:2]) == ((), ())
        args, keywords = dataparallel.scatter_kwargs(nothing, {"x": x}, devices[:2])
        assert args == ((), ())
        assert [plain(each["x"]) for each in keywords] == [plain(x[:2]), plain(x[2:])]


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


@pytest.mark.devices(2, distinct=True)
def test_a_failure_on_the_current_device_names_its_number(devices):
    kind = devices[0].type
    with (
        torch.get_device_module(kind).device(devices[1]),
        pytest.raises(ValueError, match=f"in replica 0 on device {devices[1].index}\\."),
    ):
        dataparallel.parallel_apply([Failing()] * 2, [(3,)] * 2, None, [torch.device(kind)] * 2)


@pytest.mark.parametrize("chunking", ["torch", "balanced"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_no_rows_are_an_empty_chunk_for_each_device(devices, chunking, count):
    some = [devices[0]] * count
    chunks = dataparallel.scatter(torch.zeros(0, 3), some, chunking=chunking)
    assert [chunk.shape for chunk in chunks] == [(0, 3)] * count


def test_a_tensor_is_scattered_to_a_tuple_and_all_else_to_a_list(devices):
    x = values((4, 3), "float32", 1).to(devices[0])
    assert type(dataparallel.scatter(x, devices[:2])) is tuple
    for structure in ([x], (x,), {"x": x}, None, 3):
        assert type(dataparallel.scatter(structure, devices[:2])) is list


def test_falsy_argument_counts_as_given(devices):
    """Only no tuple, or an empty one, says that there is none."""
    args, kwargs = dataparallel.scatter_kwargs(torch.zeros(1), None, devices[:1])
    assert (plain(args[0]), kwargs) == ([0.0], ({},))
    assert dataparallel.scatter_kwargs({}, None, devices[:2]) == (({}, {}), ({}, {}))


def test_replicas_of_none_are_refused_by_gather(devices):
    with pytest.raises(ValueError, match="at least one replica, but got none"):
        dataparallel.gather([], devices[0])
    with pytest.raises(ValueError, match="at least one replica, but got none"):
        dataparallel.gather(iter(()), devices[0])


def test_an_index_is_of_the_type_of_the_first_tensor(devices):
    """Whatever stands before it, and be it in a sequence that is packed."""
    x = values((2, 3), "float32", 1).to(devices[0])
    packed = nn.utils.rnn.pack_sequence([x, x[:1]])
    for outputs in ([[3, None, x]] * 2, [{"a": "b", "x": packed}] * 2):
        found = dataparallel.gather(iter(outputs), devices[0].index)
        last = found[2] if isinstance(found, list) else found["x"].data
        assert last.device == devices[0]


class Powers(nn.Module):
    """Second derivatives that depend on both parameters, and a parameter without any."""

    def __init__(self, seed):
        super().__init__()
        self.first, self.second = (nn.Parameter(values((3,), "float64", seed + n)) for n in (0, 1))
        self.unused = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x):
        return (x * (self.first * self.second).square()).sum(1)


@given(
    count=st.integers(1, 4),
    rows=st.integers(1, 5),
    seed=st.integers(0, 99),
    frozen=st.sampled_from(["", "first", "second"]),
)
def test_second_derivatives_are_those_of_one_device(devices, count, rows, seed, frozen):
    x = values((rows, 3), "float64", seed).to(devices[0])

    def derivatives(wrap):
        module = Powers(seed).to(devices[0])
        wanted = [p.requires_grad_(name != frozen) for name, p in module.named_parameters()]
        wanted = [parameter for parameter in wanted if parameter.requires_grad]
        total = wrap(module)(x).sum()
        first = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True)
        sum(g.pow(2).sum() for g in first if g is not None).backward()
        return [*first, *(parameter.grad for parameter in wanted)]

    some = [devices[n % len(devices)] for n in range(count)]
    found = derivatives(lambda module: dataparallel.DataParallel(module, some))
    for ours, single in zip(found, derivatives(lambda module: module), strict=True):
        assert (ours is None) == (single is None)
        assert ours is None or torch.equal(ours, single)


Fields = collections.namedtuple("Fields", "mask rows")


@dataclasses.dataclass
class Named:
    mask: torch.Tensor
    rows: list


@pytest.mark.parametrize("kind", [Fields, Named])
def test_rows_that_do_not_fit_are_named_by_their_fields(devices, kind):
    wrong = kind(torch.ones(4, 1), [torch.ones(1, 1)])
    with pytest.raises(ValueError, match=re.escape("inputs[0].rows[0] has batch size 1")):
        dataparallel.scatter_kwargs((wrong,), None, devices[:2])
