"""DataParallel end to end: training on many devices is training on one.

Its state dicts have a prefix, and devices of unlike memory are reported.
"""

import warnings
from types import SimpleNamespace
from unittest import mock

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


AMOUNTS = st.lists(st.integers(1, 24), min_size=4, max_size=4)
ALIKE = [8, 8, 8, 8]


def reported(devices, memory, cores):
    """The warnings of a DataParallel on devices that have so much memory and so many cores."""
    amounts = {
        device.index: SimpleNamespace(total_memory=each[0], multi_processor_count=each[1])
        for device, *each in zip(devices, memory, cores, strict=True)
    }
    module = torch.get_device_module(devices[0])
    with (
        mock.patch.object(module, "get_device_properties", amounts.__getitem__),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        dataparallel.DataParallel(nn.Linear(1, 1).to(devices[0]), devices)
    return caught


@pytest.mark.devices(4, distinct=True)  # the same one cannot be of unequal strength
@given(memory=AMOUNTS | st.just(ALIKE), cores=AMOUNTS | st.just(ALIKE))
@example(memory=[4, 4, 4, 3], cores=ALIKE)
@example(memory=ALIKE, cores=[12, 16, 16, 16])
@example(memory=ALIKE, cores=[11, 16, 16, 16])
@example(memory=[2, 4, 4, 4], cores=[4, 2, 4, 4])
def test_a_device_below_75_percent_of_another_is_named(devices, memory, cores):
    """At exactly 75 % it is not; and one warning is enough."""
    uneven = [
        (name, amounts)
        for name, amounts in (("total_memory", memory), ("multi_processor_count", cores))
        if 4 * min(amounts) < 3 * max(amounts)
    ]
    caught = reported(devices, memory, cores)
    assert len(caught) == bool(uneven)
    if uneven:
        name, amounts = uneven[0]
        weak, strong = (devices[amounts.index(f(amounts))] for f in (min, max))
        text = str(caught[0].message)
        assert f"{weak} has less than 75% of the memory or cores of {strong} ({name} " in text
        assert f" {min(amounts)} against {max(amounts)})" in text
        assert caught[0].filename == __file__


@pytest.mark.devices(4, distinct=True)
def test_only_given_devices_are_compared(devices):
    assert not reported(devices[:2], [4, 4], [8, 8])
    module = torch.get_device_module(devices[0])
    asked = []
    with mock.patch.object(module, "get_device_properties", lambda index: asked.append(index)):
        dataparallel.DataParallel(nn.Linear(1, 1), [torch.device("cpu")] * 2)
    assert asked == []


class Versioned(nn.Module):
    """A module whose own version, and not only its children's, says how to load it."""

    _version = 7

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))


def state(net: nn.Module) -> tuple[list[str], list[tuple[str, dict]]]:
    kept = net if isinstance(net, dict) else net.state_dict()
    return list(kept), list(kept._metadata.items())


@given(depth=st.integers(0, 3))
def test_versions_are_the_wrappers(depth):
    """Whatever is added for a number of wrappers around each other is what they would write."""
    net = wrapped = Versioned()
    for _ in range(depth):
        wrapped = dataparallel.DataParallel(wrapped, [torch.device("cpu")])
    prefix = "module." * depth
    assert state(dataparallel.add_prefix(net.state_dict(), prefix)) == state(wrapped)
    assert state(dataparallel.strip_prefix(wrapped.state_dict(), prefix)) == state(net)
    assert state(dataparallel.strip_prefix(net.state_dict())) == state(net)  # there is none
    bare = dict(net.state_dict())  # some checkpoints keep no versions
    prefixed = dataparallel.add_prefix(bare, prefix)
    assert dataparallel.strip_prefix(prefixed, prefix) == bare
    if depth:
        with pytest.raises(ValueError, match="both with and without the prefix"):
            dataparallel.strip_prefix(bare | prefixed, prefix)


@pytest.mark.parametrize("strip", [True, False])
def test_the_root_modules_version_reaches_loading(strip):
    """What loads an old checkpoint asks for the version of the root module as well."""
    found = []

    class Loading(Versioned):
        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
            found.append(local_metadata.get("version"))
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    net = Loading()
    wrapper = dataparallel.DataParallel(net, [torch.device("cpu")])
    if strip:
        net.load_state_dict(dataparallel.strip_prefix(wrapper.state_dict()))
    else:
        wrapper.load_state_dict(dataparallel.add_prefix(net.state_dict()))
    assert found == [7]
