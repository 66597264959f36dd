"""Calls that cannot be meant, and outputs that are not built alike, are refused word for word."""

import dataclasses
import re
from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import dataparallel
from dataparallel import comm
from tests.support import strategies
from tests.support.observe import values


def net(device="cpu"):
    return nn.Linear(3, 3).to(device)


def rows(device="cpu", count=4):
    return values((count, 3), "float32").to(device)


class Early(dataparallel.DataParallel):
    def __init__(self):
        self.module  # noqa: B018


class NoModule(dataparallel.DataParallel):
    def __init__(self):
        nn.Module.__init__(self)
        self.module = 3


def chunked(at, wrong):
    return dataparallel.DataParallel(net(at[0]), at, chunking=wrong)


def wrapped(at):
    return dataparallel.DataParallel(net(at[0]), at)


def chunking(value):
    return ValueError(f'chunking must be "torch" or "balanced", but got {value!r}')


def uneven(dim, found):
    return ValueError(
        f"the arguments do not yield the same number of chunks along dim {dim} on 2 devices, so "
        f"rows would be lost: {found}. Give all tensors the same batch size, or pass what every "
        "replica shall see whole as something that is not cut, such as a 0-dimensional tensor or "
        "a buffer of the module"
    )


def out_of_range(least, most, dim):
    return IndexError(
        f"Dimension out of range (expected to be in range of [{least}, {most}], but got {dim})"
    )


# Each call on two devices, and its error.
REFUSED = {
    "chunking of a module": (lambda at: chunked(at, "even"), chunking("even")),
    "chunking of one device": (lambda at: chunked(at[:1], None), chunking(None)),
    "chunking of a call": (
        lambda at: dataparallel.data_parallel(net(at[0]), rows(at[0]), at, chunking="even"),
        chunking("even"),
    ),
    "chunking of scatter": (
        lambda at: dataparallel.scatter(rows(at[0]), at, chunking=2),
        chunking(2),
    ),
    "chunking of keywords": (
        lambda at: dataparallel.scatter_kwargs((), {"x": rows(at[0])}, at, chunking=""),
        chunking(""),
    ),
    "another module elsewhere": (
        lambda at: wrapped(at).replicate(net(at[1]), at),
        RuntimeError(
            "module must have its parameters and buffers on device {at[0]} (device_ids[0]) but "
            "found one of them on device: {at[1]}"
        ),
    ),
    "no module": (
        lambda at: NoModule(),
        TypeError("module must be a torch.nn.Module, but got int"),
    ),
    "a module too early": (
        lambda at: Early(),
        RuntimeError("DataParallel holds no module yet; call super().__init__(module)"),
    ),
    "a sum of nothing": (
        lambda at: comm.reduce_add([]),
        ValueError("reduce_add expects at least one tensor to sum, but got none"),
    ),
    "sums of nothing": (
        lambda at: comm.reduce_add_coalesced([]),
        ValueError("reduce_add_coalesced expects the tensors of at least one device"),
    ),
    "sums of more and less": (
        lambda at: comm.reduce_add_coalesced([[rows(at[0])] * 2, [rows(at[1])]], at[0]),
        ValueError("every device must have as many tensors, but got [2, 1] tensors"),
    ),
    "sums of other sizes": (
        lambda at: comm.reduce_add_coalesced([[rows(at[0], 4)], [rows(at[1], 2)]], at[0]),
        ValueError("tensor 0 of device 1 has size [2, 3], but expected [4, 3]"),
    ),
    "rows that would be lost": (
        lambda at: wrapped(at).scatter((rows(at[0], 1), [3]), {"y": (rows("cpu"),)}, at),
        uneven(
            0, "inputs[0] has batch size 1 (1 chunk); kwargs['y'][0] has batch size 4 (2 chunks)"
        ),
    ),
    "columns that would be lost": (
        lambda at: dataparallel.scatter({"a": rows(at[0]), "b": rows(at[0]).t()[:, :1]}, at, 1),
        uneven(
            1, "inputs['a'] has batch size 3 (2 chunks); inputs['b'] has batch size 1 (1 chunk)"
        ),
    ),
    "a dimension that one device's tensor lacks": (
        lambda at: dataparallel.scatter_kwargs((rows(at[0]),), {}, at[:1], -3),
        out_of_range(-2, 1, -3),
    ),
    "a dimension past the last of one device's tensor": (
        lambda at: dataparallel.scatter_kwargs((rows(at[0]),), {}, at[:1], 2),
        out_of_range(-2, 1, 2),
    ),
    "outputs of no replica": (
        lambda at: dataparallel.gather(iter(()), at[0]),
        ValueError("gather needs the output of at least one replica, but got none"),
    ),
    "nowhere to scatter to": (
        lambda at: comm.scatter(rows(at[0])),
        RuntimeError("Expected at least one device to scatter to, but got devices=None"),
    ),
    "too few inputs": (
        lambda at: dataparallel.parallel_apply([net(at[0])] * 2, [rows(at[0])]),
        ValueError("inputs must have one entry for each of the 2 modules, but has 1"),
    ),
    "too many devices": (
        lambda at: dataparallel.parallel_apply([net(at[0])], [rows(at[0])], [{}], at),
        ValueError("devices must have one entry for each of the 1 modules, but has 2"),
    ),
}


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("name", REFUSED)
def test_wrong_calls_are_refused_in_these_words(devices, name):
    call, error = REFUSED[name]
    with pytest.raises(type(error)) as caught:
        call(devices)
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error).replace("{at[0]}", str(devices[0])).replace(
        "{at[1]}", str(devices[1])
    )


# Outputs of replicas that are not built alike, and what the error says of them.
UNLIKE = {
    " is list of length 2 in replica 0, list of length 1 in replica 1": ([1, 2], [1]),
    "[1] is dict with 1 keys ['a'] in replica 0, dict with 1 keys ['b'] in replica 1": (
        (3, {"a": 1}),
        (3, {"b": 1}),
    ),
    " is float in replica 0, Tensor in replica 1, NoneType in replica 2": (3.0, rows(), None),
    " is tuple of length 1 in replica 0, int in replica 1": ((3,), 3),
    " is int in replica 0, tuple of length 1 in replica 1": (3, (3,)),
    " is list of length 1 in replica 0, dict with 1 keys [0] in replica 1": ([3], {0: 3}),
    " is dict with 1 keys [0] in replica 0, list of length 1 in replica 1": ({0: 3}, [3]),
}


@pytest.mark.parametrize("found", UNLIKE)
def test_outputs_built_differently_raise_in_these_words(devices, found):
    with pytest.raises(ValueError, match="so they cannot be gathered") as caught:
        dataparallel.gather(UNLIKE[found], devices[0])
    assert str(caught.value) == (
        f"the replicas' outputs are not built alike, so they cannot be gathered: output{found}"
    )


@pytest.mark.devices(2)
def test_no_modules_have_no_outputs(devices):
    assert dataparallel.parallel_apply([], []) == []
    assert dataparallel.replicate(net(devices[0]), []) == []


def two_rows(device):
    return torch.ones(2, 3, device=device)


KINDS = {
    "nothing": lambda device: None,
    "tensor": two_rows,
    "packed": lambda device: pack_sequence([two_rows(device)]),
    "no key": lambda device: {},
    "key a": lambda device: {"a": two_rows(device)},
    "key b": lambda device: {"b": two_rows(device)},
    "keys a and b": lambda device: {"a": two_rows(device), "b": two_rows(device)},
    "list": lambda device: [two_rows(device)],
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
    device, fits = devices[0], two_rows(devices[0])
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
