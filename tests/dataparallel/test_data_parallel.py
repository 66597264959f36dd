"""DataParallel end to end: training on many devices is training on one."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from tests.support import strategies
from tests.support.chunk_rule import chunk_sizes
from tests.support.observe import Case, ExactNet, chosen, observe, plain, slot_of, values
from tests.support.training import check_training


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@given(case=strategies.step_cases() | strategies.step_cases(repeats=True), steps=st.integers(1, 3))
@example(case=Case("step", slots=(0, 1, 2, 3, 4, 5, 6, 7), shape=(200, 5)), steps=3)
@example(case=Case("step", slots=(2, 2, 2, 2), shape=(9, 3)), steps=2)
def test_training_equals_training_on_one_device(devices, optimizer, case, steps):
    """Every loss, gradient and weight after k steps is the same, bit for bit.

    A device named several times has as many replicas: so one GPU runs what is meant for many.
    """
    targets, rows = chosen(case.slots, devices), case.shape[0]
    net = check_training(lambda: ExactNet(4, "float64"), targets, optimizer, steps, rows=rows)
    if rows:
        assert len(net.diary) == steps * len(chunk_sizes(rows, len(targets)))


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


@pytest.mark.parametrize("device_ids", [[], (), range(0)])
def test_empty_device_ids_are_refused(devices, device_ids):
    """Nobody who gives a list means a module that is not divided."""
    for net in (ExactNet(3, "float32"), ExactNet(3, "float32").to(devices[0])):
        with pytest.raises(ValueError, match=f"names no device.*None.*{devices[0].type}"):
            dataparallel.DataParallel(net, device_ids)
        with pytest.raises(ValueError, match="names no device"):
            dataparallel.data_parallel(net, values((5, 3), "float32"), device_ids)
