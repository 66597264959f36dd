"""DataParallel end to end: training on many devices is training on one."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from dataparallel._devices import available_type
from tests.support import strategies
from tests.support.chunk_rule import chunk_sizes
from tests.support.observe import Case, ExactNet, chosen, observe, plain, slot_of, values


def trained(net: nn.Module, model: nn.Module, case: Case, steps: int) -> dict[str, list]:
    """Train `model`, which has `net` in it, with plain SGD in exact numbers.

    The loss is linear in the output and the rate is 1, so weights stay integers; after three steps
    they are below 2**53 for any batch in use, and every sum is exact in any order.
    """
    home = next(net.parameters()).device
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    losses = []
    for step in range(steps):
        x = values(case.shape, "float64", case.seed + step, span=3)
        optimizer.zero_grad()
        out = model(x.to(home))
        weight = values(tuple(out.shape), "float64", case.seed + 5 * step, span=3)
        loss = (out * weight.to(home)).sum()
        loss.backward()
        optimizer.step()
        losses.append(plain(loss))
    return {"losses": losses, **{name: plain(p) for name, p in net.named_parameters()}}


@given(case=strategies.step_cases() | strategies.step_cases(repeats=True), steps=st.integers(1, 3))
@example(case=Case("step", slots=(0, 1, 2, 3, 4, 5, 6, 7), shape=(200, 5)), steps=3)
@example(case=Case("step", slots=(2, 2, 2, 2), shape=(9, 3)), steps=2)
def test_training_equals_training_on_one_device(devices, case, steps):
    """Every loss and every weight after k steps of SGD are the same, bit for bit.

    A device named several times has as many replicas: so one GPU runs what is meant for many.
    """
    targets = chosen(case.slots, devices)
    single = ExactNet(case.shape[-1], "float64", case.seed).to(targets[0])
    shared = ExactNet(case.shape[-1], "float64", case.seed).to(targets[0])
    parallel = dataparallel.DataParallel(shared, device_ids=targets)
    assert trained(shared, parallel, case, steps) == trained(single, single, case, steps)
    if case.shape[0]:
        assert len(shared.diary) == steps * len(chunk_sizes(case.shape[0], len(targets)))


@given(case=strategies.step_cases())
@example(case=Case("step", slots=(0, 1, 2, 3), shape=(30, 5)))
@example(case=Case("step", slots=(0, 1, 2, 3, 4, 5, 6, 7), shape=(10, 5), dtype="float64"))
def test_each_replica_sees_its_chunk(devices, case):
    seen = observe(case, devices)
    targets = chosen(case.slots, devices)
    sizes = chunk_sizes(case.shape[0], len(targets))
    if case.shape[0]:
        assert seen["sizes"] == sizes
        assert seen["slots"] == [slot_of(t, devices) for t in targets[: len(sizes)]]
    else:
        assert set(seen["sizes"]) == {0}


@given(case=strategies.step_cases())
def test_output_is_that_of_one_device(devices, case):
    seen = observe(case, devices)
    net = ExactNet(case.shape[-1], case.dtype, case.seed)
    x = values(case.shape, case.dtype, case.seed + 7, span=3)
    assert seen["gathered"] == [case.shape[0], 2]
    assert seen["values"] == plain(net(x))
    assert seen["slot"] == slot_of(chosen(case.slots, devices)[0], devices)


@given(case=strategies.step_cases(), data=st.data())
def test_output_device_is_obeyed(devices, case, data):
    targets = chosen(case.slots, devices)
    # A single device's output is the module's own: it stays where the module left it.
    elsewhere = [torch.device("cpu")] if len(targets) > 1 else []
    wanted = data.draw(st.sampled_from([*targets, *elsewhere]))
    net = ExactNet(case.shape[-1], case.dtype).to(targets[0])
    number = wanted if wanted.type == "cpu" else wanted.index
    named = data.draw(st.sampled_from([wanted, str(wanted), number]))
    model = dataparallel.DataParallel(net, device_ids=targets, output_device=named)
    assert model.output_device == number  # an index, as in torch.nn.DataParallel
    out = model(values(case.shape, case.dtype, span=3))
    assert out.device == wanted
    assert plain(out) == plain(net.cpu()(values(case.shape, case.dtype, span=3)))


class Keyword(nn.Module):
    """Adds a keyword argument to its input; refuses to run without an input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor, times: int = 1) -> torch.Tensor:
        return x * self.weight * times + bias


class Nested(nn.Module):
    """Takes and gives nested structures."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((), 2.0))

    def forward(self, pair, table):
        left, right = pair
        return {"sum": left * self.weight + right, "both": [table["x"], (left, None)]}


@given(data=st.data())
def test_nested_inputs_and_outputs(devices, data):
    targets = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(targets)))
    left, right, x = (values((batch, 2), "float32", seed) for seed in range(3))
    model = dataparallel.DataParallel(Nested().to(targets[0]), device_ids=targets)
    out = model((left, right), {"x": x})
    assert list(out) == ["sum", "both"]
    assert plain(out["sum"]) == plain(left * 2 + right)
    assert plain(out["both"][0]) == plain(x)
    assert plain(out["both"][1][0]) == plain(left)
    assert out["both"][1][1] is None


@pytest.mark.devices(4)
@given(data=st.data())
def test_a_module_elsewhere_is_refused(devices, data):
    """The module has to be where the first replica is; the text says where and what was found."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    model = dataparallel.DataParallel(ExactNet(3, "float32").to(targets[0]), device_ids=targets)
    model.module.second.cpu()
    with pytest.raises(RuntimeError, match=rf"must have .* on device:? {targets[0]}.*: cpu"):
        model(values((9, 3), "float32"))


@pytest.mark.devices(4)
def test_without_inputs_the_module_is_called_once(devices):
    calls = []

    class Alone(Keyword):
        def forward(self):
            calls.append(self.weight.device)
            return self.weight.view(1) * 3

    model = dataparallel.DataParallel(Alone().to(devices[0]), device_ids=devices)
    assert plain(model()) == [3.0]
    assert calls == [devices[0]]


def test_a_lazy_module_learns_its_shapes_on_one_device(devices):
    """There it is called itself; it is copies that cannot be made before it has shapes."""
    x = values((3, 4), "float32").to(devices[0])
    for call in (
        lambda net: dataparallel.DataParallel(net, devices[:1])(x),
        lambda net: dataparallel.data_parallel(net, x, devices[:1]),
    ):
        net = nn.LazyLinear(2).to(devices[0])
        assert plain(call(net)) == plain(net(x))
        assert net.weight.shape == (2, 4)


@pytest.mark.devices(4)
def test_devices_default_to_all(devices):
    net = ExactNet(3, "float32").to(devices[0])
    model = dataparallel.DataParallel(net)
    count = torch.get_device_module(devices[0]).device_count()
    assert len(model.device_ids) == count
    assert model(values((8, 3), "float32")).device == devices[0]


@pytest.mark.skipif(available_type() is not None, reason="there is an accelerator here")
@pytest.mark.parametrize("device_ids", [None, [], range(0)])
def test_without_devices_the_module_is_called_on_the_cpu(device_ids):
    """The code that trains on many GPUs runs on a machine that has none."""
    net = ExactNet(3, "float32")
    x = values((5, 3), "float32")
    assert plain(dataparallel.DataParallel(net, device_ids)(x)) == plain(net(x))
    assert plain(dataparallel.data_parallel(net, x, device_ids)) == plain(net(x))


@pytest.mark.parametrize("device_ids", [[], (), range(0)])
def test_naming_none_of_the_devices_is_refused(devices, device_ids):
    """Nobody who gives a list means a module that is not divided."""
    for net in (ExactNet(3, "float32"), ExactNet(3, "float32").to(devices[0])):
        with pytest.raises(ValueError, match=f"names no device.*None.*{devices[0].type}"):
            dataparallel.DataParallel(net, device_ids)
        with pytest.raises(ValueError, match="names no device"):
            dataparallel.data_parallel(net, values((5, 3), "float32"), device_ids)


@pytest.mark.devices(4)
def test_batch_norm_statistics_are_those_of_the_first_chunk(devices):
    """Buffers updated in place by replica 0 last; what the other replicas saw is dropped."""
    norm = nn.BatchNorm1d(2, momentum=1.0).to(devices[0])
    x = values((8, 2), "float32", span=9)
    dataparallel.DataParallel(norm, device_ids=devices)(x)
    assert plain(norm.running_mean) == plain(x[:2].mean(0))
    assert int(norm.num_batches_tracked) == 1
