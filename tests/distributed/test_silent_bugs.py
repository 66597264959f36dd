"""Mistakes in a DistributedDataParallel script, and what each comes to with SIMGPU_STRICT=1.

An error, a warning, or nothing, where two ranks that do different things may be right.
"""

import os
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import simgpu
from simgpu.errors import (
    CollectiveMismatchError,
    DeadlockError,
    DeviceMismatchError,
    ParameterOrderWarning,
    SamplerEpochWarning,
    SharedFileWarning,
    SilentBugWarning,
)


class Layers(nn.Module):
    """Layers that are registered in the order of `names`, and used in that of the alphabet."""

    def __init__(self, names="ab", widths=(2, 2)):
        super().__init__()
        for name, width in zip(names, widths, strict=True):
            self.add_module(name, nn.Linear(2, width))

    def forward(self, x):
        return sum(layer(x).sum() for _, layer in sorted(self.named_children()))


def wrapped(rank, model=None):
    torch.manual_seed(0)
    return DistributedDataParallel((model or nn.Linear(2, 2)).cuda(), device_ids=[rank])


def step(model, rank, rows=2):
    model(torch.ones(rows, 2, device=rank)).sum().backward()


def one_rank_evaluates(rank):
    model = wrapped(rank, nn.BatchNorm1d(2))
    if rank == 0:
        model.eval()(torch.ones(2, 2, device=rank))
    step(model, rank)


def one_rank_meets_a_barrier(rank):
    model = wrapped(rank)
    if rank == 0:
        dist.barrier()
    step(model, rank)


def one_rank_has_another_dtype(rank):
    wrapped(rank, nn.Linear(2, 2, dtype=torch.float64 if rank else torch.float32))


def one_rank_has_fewer_batches(rank):
    model = wrapped(rank)
    for _ in range(3 - rank):
        step(model, rank)


def a_parameter_is_unused(rank):
    layers = Layers()
    layers.forward = lambda x: layers.a(x)
    model = wrapped(rank, layers)
    for _ in range(2):
        step(model, rank)


def layers_have_another_order(rank):
    step(wrapped(rank, Layers("ba" if rank else "ab")), rank)


def layers_of_other_widths_have_another_order(rank):
    wrapped(rank, Layers("ba", (2, 3)) if rank else Layers("ab", (3, 2)))


def epochs_have_one_order(rank):
    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, sampler=DistributedSampler(data))
    for _ in range(2):
        list(loader)


def all_ranks_save_one_checkpoint(rank):
    torch.save(wrapped(rank).state_dict(), "checkpoint.pt")


def all_ranks_open_one_file(rank):
    with open("metrics.txt", "w") as file:
        file.write(str(rank))


def ranks_name_other_roots(rank):
    dist.broadcast(torch.ones(2, device=rank), src=rank)


def inputs_are_on_one_device(rank):
    step(DistributedDataParallel(nn.Linear(2, 2).to(rank)), 0)


def the_learning_rate_differs(rank):
    model = wrapped(rank)
    step(model, rank)
    torch.optim.SGD(model.parameters(), lr=0.1 + rank).step()


def all_ranks_read_the_same_rows(rank):
    loader = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
    model = wrapped(rank)
    for (x,) in loader:
        model(x.cuda()).sum().backward()


def a_metric_is_of_one_rank(rank):
    assert torch.tensor(float(rank), device=rank).item() == rank


def all_ranks_write_one_path(rank):
    Path("log.txt").write_text("0")


def all_ranks_save_one_array(rank):
    numpy.save("rows.npy", [0])


BUGS = {
    one_rank_evaluates: CollectiveMismatchError,
    one_rank_meets_a_barrier: CollectiveMismatchError,
    one_rank_has_another_dtype: CollectiveMismatchError,
    one_rank_has_fewer_batches: DeadlockError,
    a_parameter_is_unused: RuntimeError,
    layers_have_another_order: ParameterOrderWarning,
    layers_of_other_widths_have_another_order: RuntimeError,
    epochs_have_one_order: SamplerEpochWarning,
    all_ranks_save_one_checkpoint: SharedFileWarning,
    all_ranks_open_one_file: SharedFileWarning,
    all_ranks_write_one_path: SharedFileWarning,
    all_ranks_save_one_array: SharedFileWarning,
    ranks_name_other_roots: CollectiveMismatchError,
    inputs_are_on_one_device: DeviceMismatchError,
    the_learning_rate_differs: None,
    all_ranks_read_the_same_rows: None,
    a_metric_is_of_one_rank: None,
}


def outcome(call):
    """The class of the error that a call raises, or of its warnings, or None."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except Exception as error:
            return type(error)
    found = {each.category for each in caught if issubclass(each.category, SilentBugWarning)}
    return found.pop() if found else None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
@pytest.mark.parametrize("strict", [True, False])
def test_bug_of_a_script_is_reported(bug, strict, monkeypatch, tmp_path):
    """Without SIMGPU_STRICT, only what is never right."""
    monkeypatch.chdir(tmp_path)
    kind = BUGS[bug]
    if strict:
        monkeypatch.setenv("SIMGPU_STRICT", "1")
    elif kind and issubclass(kind, SilentBugWarning) and kind is not ParameterOrderWarning:
        kind = None
    assert outcome(lambda: simgpu.ranks(2, bug)) is kind


def test_file_is_named_with_the_lines_that_write_it(monkeypatch, tmp_path):
    """Also where a package opens it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIMGPU_STRICT", "1")
    code = all_ranks_save_one_array.__code__
    with pytest.warns(SharedFileWarning) as caught:
        simgpu.ranks(2, all_ranks_save_one_array)
    line = code.co_firstlineno + 1
    for warning in (each for each in caught if each.category is SharedFileWarning):
        assert (warning.filename, warning.lineno) == (__file__, line)
        assert f"has written at {__file__}:{line}:" in str(warning.message)


def correct_script(rank):
    """Two models whose layers have another order; two epochs; files of one rank, or of each."""
    for layers in (Layers("ab"), Layers("ba")):
        model = wrapped(rank, layers)
    data = TensorDataset(torch.ones(8, 2))
    sampler = DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, batch_size=2, sampler=sampler):
            model(x.cuda()).backward()
    in_order = DistributedSampler(data, shuffle=False)
    assert [*in_order] == [*in_order]
    if rank == 0:
        torch.save(model.state_dict(), "checkpoint.pt")
        torch.save(model.state_dict(), "checkpoint.pt")
    dist.barrier()
    assert torch.load("checkpoint.pt").keys() == model.state_dict().keys()
    with open(f"metrics of {rank}.txt", "w") as file:
        file.write("0")
    with open("checkpoint.pt", "rb"), open(os.devnull, "w"):
        pass


def test_correct_script_is_silent(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIMGPU_STRICT", "1")
    assert outcome(lambda: simgpu.ranks(2, correct_script)) is None
