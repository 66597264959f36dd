"""Calls that cannot be meant: refused at once, with what was found and, word for word, why."""

import pytest
from torch import nn

import dataparallel
from dataparallel import comm
from tests.support.observe import values

CHUNKING = 'chunking must be "torch" or "balanced", but got {wrong!r}'
UNEVEN = (
    "the arguments do not yield the same number of chunks along dim {dim} on 2 devices, so rows "
    "would be lost: {found}. Give all tensors the same batch size, or pass what every replica "
    "shall see whole as something that is not cut, such as a 0-dimensional tensor or a buffer of "
    "the module"
)


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


# Each call on two devices, with the type of the error and its text.
REFUSED = {
    "chunking of a module": (lambda at: chunked(at, "even"), ValueError, CHUNKING, "even"),
    "chunking of one device": (lambda at: chunked(at[:1], None), ValueError, CHUNKING, None),
    "chunking of a call": (
        lambda at: dataparallel.data_parallel(net(at[0]), rows(at[0]), at, chunking="even"),
        ValueError,
        CHUNKING,
        "even",
    ),
    "chunking of scatter": (
        lambda at: dataparallel.scatter(rows(at[0]), at, chunking=2),
        ValueError,
        CHUNKING,
        2,
    ),
    "chunking of keywords": (
        lambda at: dataparallel.scatter_kwargs((), {"x": rows(at[0])}, at, chunking=""),
        ValueError,
        CHUNKING,
        "",
    ),
    "another module elsewhere": (
        lambda at: wrapped(at).replicate(net(at[1]), at),
        RuntimeError,
        "module must have its parameters and buffers on device {at[0]} (device_ids[0]) but found "
        "one of them on device: {at[1]}",
        None,
    ),
    "no module": (
        lambda at: NoModule(),
        TypeError,
        "module must be a torch.nn.Module, but got int",
        None,
    ),
    "a module too early": (
        lambda at: Early(),
        RuntimeError,
        "DataParallel holds no module yet; call super().__init__(module)",
        None,
    ),
    "sums of nothing": (
        lambda at: comm.reduce_add_coalesced([]),
        ValueError,
        "reduce_add_coalesced expects the tensors of at least one device",
        None,
    ),
    "sums of more and less": (
        lambda at: comm.reduce_add_coalesced([[rows(at[0])] * 2, [rows(at[1])]], at[0]),
        ValueError,
        "every device must have as many tensors, but got [2, 1] tensors",
        None,
    ),
    "rows that would be lost": (
        lambda at: wrapped(at).scatter((rows(at[0], 1), [3]), {"y": (rows("cpu"),)}, at),
        ValueError,
        UNEVEN.replace("{dim}", "0"),
        "inputs[0] has batch size 1 (1 chunk); kwargs['y'][0] has batch size 4 (2 chunks)",
    ),
    "columns that would be lost": (
        lambda at: dataparallel.scatter({"a": rows(at[0]), "b": rows(at[0]).t()[:, :1]}, at, 1),
        ValueError,
        UNEVEN.replace("{dim}", "1"),
        "inputs['a'] has batch size 3 (2 chunks); inputs['b'] has batch size 1 (1 chunk)",
    ),
    "a dimension that one device's tensor lacks": (
        lambda at: dataparallel.scatter_kwargs((rows(at[0]),), {}, at[:1], -3),
        IndexError,
        "Dimension out of range (expected to be in range of [-2, 1], but got -3)",
        None,
    ),
    "a dimension past the last of one device's tensor": (
        lambda at: dataparallel.scatter_kwargs((rows(at[0]),), {}, at[:1], 2),
        IndexError,
        "Dimension out of range (expected to be in range of [-2, 1], but got 2)",
        None,
    ),
    "outputs of no replica": (
        lambda at: dataparallel.gather(iter(()), at[0]),
        ValueError,
        "gather needs the output of at least one replica, but got none",
        None,
    ),
    "a sum of nothing": (
        lambda at: comm.reduce_add([]),
        ValueError,
        "reduce_add expects at least one tensor to sum, but got none",
        None,
    ),
    "sums of other sizes": (
        lambda at: comm.reduce_add_coalesced([[rows(at[0], 4)], [rows(at[1], 2)]], at[0]),
        ValueError,
        "tensor 0 of device 1 has size [2, 3], but expected [4, 3]",
        None,
    ),
    "nowhere to scatter to": (
        lambda at: comm.scatter(rows(at[0])),
        RuntimeError,
        "Expected at least one device to scatter to, but got devices=None",
        None,
    ),
    "an output of fewer dimensions": (
        lambda at: comm.scatter(rows(at[0]), out=[rows(at[0])[0]], dim=1),
        RuntimeError,
        "Output tensor at index 0 has incorrect shape: [3]. Expected same shape except for scatter "
        "dim 1 as the source tensor: [4, 3]",
        None,
    ),
    "too few inputs": (
        lambda at: dataparallel.parallel_apply([net(at[0])] * 2, [rows(at[0])]),
        ValueError,
        "inputs must have one entry for each of the 2 modules, but has 1",
        None,
    ),
    "too many devices": (
        lambda at: dataparallel.parallel_apply([net(at[0])], [rows(at[0])], [{}], at),
        ValueError,
        "devices must have one entry for each of the 1 modules, but has 2",
        None,
    ),
}


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("name", REFUSED)
def test_wrong_calls_are_refused_in_these_words(devices, name):
    call, kind, text, found = REFUSED[name]
    with pytest.raises(kind) as caught:
        call(devices)
    assert type(caught.value) is kind
    assert str(caught.value) == text.format(at=devices, wrong=found, found=found)


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
