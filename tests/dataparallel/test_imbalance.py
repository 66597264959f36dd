"""The warning about devices of unequal strength: memory and multiprocessors, below 75 %."""

import warnings
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import dataparallel

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
