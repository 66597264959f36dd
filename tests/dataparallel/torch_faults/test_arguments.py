"""Faults 2, 3, 4 and 8: what is cut, into how many chunks, and what every replica is given."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from tests.dataparallel.torch_faults.sides import BOTH, OURS, THEIRS, parallel, reported, rows
from tests.support import strategies
from tests.support.observe import plain


def scaled(replica, x, *, factor=1):
    return x * replica.weight * factor


@pytest.mark.devices(4)
def test_fault_02_a_keyword_calls_a_replica_without_input(devices):
    """Two rows and a number as a keyword on four devices: their third replica gets no input."""
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        parallel(THEIRS, devices, scaled)(rows(2), factor=3)
    assert plain(parallel(OURS, devices, scaled)(rows(2), factor=3)) == plain(rows(2) * 3)


@pytest.mark.devices(4)
def test_fault_03_rows_are_dropped_in_silence(devices):
    """Eight rows next to two: theirs computes four of them, and says nothing."""
    theirs = parallel(THEIRS, devices, lambda replica, x, y: x)(rows(8), rows(2))
    assert plain(theirs) == plain(rows(8)[:4])
    calls = []
    ours = parallel(OURS, devices, lambda replica, x, y: calls.append(x))
    with pytest.raises(ValueError, match=r"inputs\[0\] has batch size 8 .*inputs\[1\] .* 2 "):
        ours(rows(8), rows(2))
    assert not calls


@pytest.mark.devices(4)
def test_fault_04_a_tensor_without_dimensions_raises(devices):
    temperature = torch.tensor(2.0)
    with pytest.raises(RuntimeError, match="chunk expects at least a 1-dimensional tensor"):
        parallel(THEIRS, devices, lambda replica, x, t: x * t)(rows(8), temperature)
    out = parallel(OURS, devices, lambda replica, x, t: x * t)(rows(8), temperature)
    assert plain(out) == plain(rows(8) * 2)


@given(data=st.data(), where=st.sampled_from(("cpu", "first", "last")), grad=st.booleans())
def test_fault_04_a_tensor_without_dimensions_is_on_every_device(devices, data, where, grad):
    """It is there as any scalar is, and its gradient is the sum over all rows."""
    targets = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(targets), 20, min_size=1))
    source = {"cpu": torch.device("cpu"), "first": targets[0], "last": targets[-1]}[where]
    temperature = torch.tensor(2.0, device=source, requires_grad=grad)
    answers = reported(
        OURS,
        targets,
        lambda replica, x, *, t: (t.device == replica.weight.device, float(t.detach())),
        rows(batch),
        t=temperature,
    )
    assert set(answers) == {(True, 2.0)}
    if grad:
        model = parallel(OURS, targets, lambda replica, x, *, t: x * t)
        model(rows(batch), t=temperature).sum().backward()
        assert plain(temperature.grad) == float(rows(batch).sum())


@pytest.mark.devices(4)
def test_fault_08_a_last_chunk_of_one_row_breaks_batch_norm(devices):
    """Ten rows on four devices are 3 3 3 1; "balanced" makes them 3 3 2 2, by request only."""
    for side in BOTH:
        model = side.DataParallel(nn.BatchNorm1d(2).to(devices[0]), devices)
        with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
            model(rows(10))
    balanced = dataparallel.DataParallel(
        nn.BatchNorm1d(2).to(devices[0]), devices, chunking="balanced"
    )
    assert balanced(rows(10)).shape == (10, 2)


@pytest.mark.devices(4)
def test_fault_08_a_device_is_idle(devices):
    assert [len(c) for c in THEIRS.functions.scatter(rows(9), devices)] == [3, 3, 3]
    assert [len(c) for c in OURS.functions.scatter(rows(9), devices)] == [3, 3, 3]
    balanced = OURS.functions.scatter(rows(9), devices, chunking="balanced")
    assert [len(chunk) for chunk in balanced] == [3, 2, 2, 2]
