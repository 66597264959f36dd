"""Outputs that are not built alike are refused, whichever replica has what another has not."""

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


@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=2))
def test_one_replica_is_unlike_the_others(devices, data, kinds):
    """No output that a replica has is dropped, or left where it was, in silence."""
    common, other = kinds
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    odd = data.draw(st.integers(0, len(targets) - 1))
    outputs = [
        {"outer": [KINDS[other if k == odd else common](target)]}
        for k, target in enumerate(targets)
    ]
    if common == other:
        assert list(dataparallel.gather(outputs, targets[0])) == ["outer"]
        return
    with pytest.raises(ValueError, match="not built alike"):
        dataparallel.gather(outputs, targets[0])


@pytest.mark.devices(2)
@pytest.mark.parametrize("common", sorted(KINDS))
@pytest.mark.parametrize("other", sorted(KINDS))
def test_each_kind_next_to_each_other(devices, common, other):
    """All pairs, both ways round: random ones met a list before a dict of one key late."""
    outputs = [KINDS[kind](device) for kind, device in zip((common, other), devices, strict=True)]
    if common == other:
        dataparallel.gather(outputs, devices[0])
        return
    with pytest.raises(ValueError, match="not built alike"):
        dataparallel.gather(outputs, devices[0])
