"""Outputs that are not built alike are refused, whichever replica has what another has not."""

import dataclasses
import re
from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

import dataparallel
from tests.support import strategies


def rows(device):
    return torch.ones(2, 3, device=device)


KINDS = {
    "nothing": lambda device: None,
    "tensor": rows,
    "packed": lambda device: pack_sequence([rows(device)]),
    "no key": lambda device: {},
    "key a": lambda device: {"a": rows(device)},
    "key b": lambda device: {"b": rows(device)},
    "keys a and b": lambda device: {"a": rows(device), "b": rows(device)},
    "list": lambda device: [rows(device)],
}


@pytest.mark.parametrize("common", sorted(KINDS))
@given(data=st.data())
def test_one_replica_is_unlike_the_others(devices, common, data):
    """No output that a replica has is dropped, or left where it was, in silence."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    odd = data.draw(st.integers(0, len(targets) - 1))
    for other in sorted(KINDS):
        outputs = [
            {"outer": [KINDS[other if k == odd else common](target)]}
            for k, target in enumerate(targets)
        ]
        if common == other:
            assert list(dataparallel.gather(outputs, targets[0])) == ["outer"]
            continue
        with pytest.raises(ValueError, match="not built alike"):
            dataparallel.gather(outputs, targets[0])


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Record:
    left: Any
    right: Any


# Each holds what it is given in one place, next to tensors that fit.
AROUND = [
    lambda held, fits: Pair(fits, held),
    lambda held, fits: Record(held, fits),
    lambda held, fits: [fits, held],
    lambda held, fits: {"left": held, ".left": fits},
    lambda held, fits: {".right": held, 2: fits},
]


def around(held, fits, steps):
    for step in steps:
        held = step(held, fits)
    return held


@pytest.mark.devices(2)
@given(steps=st.lists(st.sampled_from(AROUND), max_size=4))
def test_unlike_outputs_are_named_by_their_path(devices, steps):
    """Outputs and inputs alike: what the error says, as code, is the object that is wrong."""
    device, fits = devices[0], rows(devices[0])
    output = around(torch.ones(1, device=device), fits, steps)
    with pytest.raises(ValueError, match="not built alike") as caught:
        dataparallel.gather([output, around(None, fits, steps)], device)
    (place,) = re.findall(r"gathered: (.*) is Tensor in replica 0", str(caught.value))
    assert eval(place, {"output": output}).shape == (1,)

    inputs = (around(torch.ones(1, device=device), fits, steps), fits)
    with pytest.raises(ValueError, match="rows would be lost") as caught:
        dataparallel.scatter_kwargs(inputs, None, devices)
    (place,) = re.findall(r"[ ;:] (inputs\S*) has batch size 1 ", str(caught.value))
    assert eval(place, {"inputs": inputs}).shape == (1,)
