"""`torch.device(1)` is cuda:1 under as_cuda, as libraries expect that compare devices."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._native import memory, python_objects


@given(index=st.integers(0, 3), kind=st.sampled_from([int, np.int64, np.int32, np.uint8]))
def test_a_number_names_the_device_of_a_tensor_there(cuda, index, kind):
    device = torch.device(kind(index))
    for other in (torch.ones(2, device=index).device, torch.device("cuda", index), cuda[index]):
        assert device == other
        assert hash(device) == hash(other)
        assert type(device) is type(other) is torch.device
    assert (device.type, device.index, str(device)) == ("cuda", index, f"cuda:{index}")
    assert {device: 1}[cuda[index]] == 1
    assert copy.deepcopy(device) == pickle.loads(pickle.dumps(device)) == device
    with torch.device(index):
        assert torch.empty(1).device == device


MISTAKES = [(), (None,), ("nope",), ("cuda", 99, 1), (-5,), (1.5,)]


@pytest.mark.parametrize("arguments", MISTAKES, ids=str)
def test_mistakes_raise_alike_for_both_names_of_devices(arguments):
    reported = []
    for within in (simgpu.devices, simgpu.as_cuda):
        with within(2), pytest.raises((RuntimeError, TypeError)) as caught:
            torch.device(*arguments)
        reported.append((caught.type, str(caught.value)))
    assert reported[0] == reported[1]


@pytest.mark.parametrize("index", [-1, -9, 4, 2**15])
def test_an_error_about_a_number_names_no_other_type(cuda, index):
    with pytest.raises(RuntimeError, match="invalid device ordinal") as raised:
        torch.accelerator.set_device_index(index)
    assert "simgpu:" not in str(raised.value)


def test_the_type_is_itself_again_afterwards():
    slot = (id(torch.device) >> 3) + python_objects.NEW
    made = torch.device.__new__
    before = memory.words[slot]
    with simgpu.devices(2):
        assert torch.device(1).type == "simgpu"
    with simgpu.as_cuda(2):
        assert memory.words[slot] != before
    assert (memory.words[slot], torch.device.__new__) == (before, made)
