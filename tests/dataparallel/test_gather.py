"""Gather: the outputs come back whole, in replica order, whichever replica finishes first."""

import dataclasses
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from dataparallel import comm
from dataparallel._structure import scalar_warning
from tests.support import strategies
from tests.support.observe import input_of, observe, place, plain, slot_of, values

# Long enough for the slowest machine: reaching it means that a turn never came.
PATIENCE = 120


ALONE = strategies.cases("gather", max_devices=1)


@given(case=strategies.cases("gather") | ALONE)
def test_gather_undoes_scatter(devices, case):
    seen = observe(case, devices)
    assert seen["shape"] == list(case.shape)
    assert seen["dtype"] == f"torch.{case.dtype}"
    assert seen["slot"] == slot_of(place(case.target, devices), devices)
    assert seen["values"] == plain(input_of(case, devices))


def at_home(case):
    """The same case where the first output lies where the whole is wanted, and has elements."""
    shape = tuple(max(size, 1) for size in case.shape)
    return dataclasses.replace(case, target=case.slots[0], shape=shape)


@given(case=strategies.cases("gather") | ALONE.map(at_home))
def test_gathered_output_is_a_copy(devices, case):
    assert not any(observe(case, devices)["views"])


class Turns(nn.Module):
    """A module whose replicas finish in a given order, made sure of by events."""

    def __init__(self, order: list[int]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.before = {rank: order[k - 1] for k, rank in enumerate(order) if k}
        self.done = {rank: threading.Event() for rank in order}
        self.finished: list[int] = []

    def forward(self, x: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
        mine = int(rank[0])
        if mine in self.before and not self.done[self.before[mine]].wait(PATIENCE):
            raise TimeoutError(f"replica {self.before[mine]} did not let replica {mine} go on")
        out = x * self.scale
        self.finished.append(mine)
        self.done[mine].set()
        return out


@given(data=st.data())
def test_order_survives_any_order_of_completion(devices, data):
    targets = data.draw(strategies.device_lists(devices))
    order = data.draw(st.permutations(range(len(targets))))
    rows = data.draw(st.integers(1, 4))
    turns = Turns(list(order)).to(targets[0])
    x = values((rows * len(targets), 3), "float32", seed=len(targets))
    rank = torch.arange(len(targets)).repeat_interleave(rows)
    out = dataparallel.DataParallel(turns, device_ids=targets)(x, rank)
    assert turns.finished == list(order)
    assert plain(out) == plain(x)


@given(data=st.data(), dim=st.sampled_from((0, 1, -1)))
def test_gradient_is_cut_as_the_outputs_were(devices, data, dim):
    """Outputs of any sizes, not only those that scatter makes, each get their own part back."""
    targets = data.draw(strategies.device_lists(devices))
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=len(targets), max_size=len(targets)))
    outputs = []
    for k, (size, target) in enumerate(zip(sizes, targets, strict=True)):
        shape = [2, 2]
        shape[dim] = size
        outputs.append(values(tuple(shape), "float32", k).to(target).requires_grad_())
    whole = dataparallel.gather(outputs, targets[-1], dim)
    weight = values(tuple(whole.shape), "float32", seed=3)
    whole.backward(weight.to(whole.device))
    for output, part in zip(outputs, weight.split(sizes, dim), strict=True):
        assert output.grad.device == output.device
        assert plain(output.grad) == plain(part)


def test_vector_of_scalars_warns_once(devices, monkeypatch):
    monkeypatch.setattr(scalar_warning, "_warned_lines", set())  # this may not be the first run
    losses = [torch.tensor(1.0, device=device) for device in devices]
    with pytest.warns(UserWarning, match="0-dimensional") as caught:
        wholes = [dataparallel.gather(losses, devices[0]) for _ in range(3)]
    assert [warning.filename for warning in caught] == [__file__]
    assert [len(whole) for whole in wholes] == [len(devices)] * 3


@given(data=st.data(), dims=st.integers(0, 3), over=st.integers(0, 2), below=st.booleans())
def test_gather_along_a_missing_dimension_raises(devices, data, dims, over, below):
    """Numbers, which have no dimension, are joined along the first one only."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    parts = [torch.ones([2] * dims, device=target) for target in targets]
    dim = -dims - 1 - over if below else max(dims, 1) + over
    words = f"got dim={dim} for tensors of {dims} dimensions"
    with pytest.raises(IndexError, match=words):
        dataparallel.gather(parts, targets[0], dim)
    if dims:
        with pytest.raises(IndexError, match=words):
            comm.gather(parts, dim, targets[0])
        with pytest.raises(IndexError, match="Dimension out of range"):
            dataparallel.scatter(parts[0], targets, dim)
    else:
        with pytest.raises(IndexError, match=words):
            dataparallel.gather([*parts[1:], parts[0].view(1)], targets[0], dim)
