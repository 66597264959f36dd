"""Mistakes in a DistributedDataParallel script, and what each comes to with SIMGPU_STRICT=1.

An error, a warning, or nothing, where two ranks that do different things may be right. And what
reports of errors of several ranks have.
"""

import io
import json
import os
import sys
import warnings
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.distributed.launcher import api
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import simgpu
from simgpu._profiling.summary import watch
from simgpu.errors import (
    CollectiveMismatchError,
    DeadlockError,
    DeviceMismatchError,
    ParameterOrderWarning,
    SamplerEpochWarning,
    SharedFileWarning,
    SilentBugWarning,
)
from tests.support.worlds import unbound


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


IN_BACKWARD = "DistributedDataParallel's sum of gradients in backward"
BEFORE_FORWARD = "DistributedDataParallel's broadcast of buffers before forward"
ON_BUCKETS = "DistributedDataParallel's agreement, before the second forward, on buckets"


def train(rank, batches, buffers, goes_on=False, joins=False):
    """Batches of a rank, which others may have more of, and perhaps a collective at the end."""
    layers = [torch.nn.Linear(2, 3), *([torch.nn.BatchNorm1d(3)] if buffers else [])]
    net = DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[rank])
    with Join([net], enable=joins):
        for _ in range(batches[rank]):
            net(torch.ones(4, 2, device="cuda")).sum().backward()
    if goes_on:
        dist.all_reduce(torch.ones(1, device="cuda"))


uneven = st.lists(st.integers(1, 3), min_size=2, max_size=3).filter(lambda n: len({*n}) > 1)


@settings(max_examples=5)
@given(batches=uneven, buffers=st.booleans(), goes_on=st.booleans())
def test_uneven_batches_are_reported_by_the_step_that_waits(batches, buffers, goes_on):
    error = CollectiveMismatchError if goes_on else DeadlockError
    with pytest.raises(error) as raised:
        simgpu.ranks(len(batches), lambda rank: train(rank, batches, buffers, goes_on))
    text = str(raised.value)
    wanted = ON_BUCKETS if min(batches) == 1 else BEFORE_FORWARD if buffers else IN_BACKWARD
    assert wanted in text
    assert "torch.distributed.algorithms.Join" in text
    simgpu.ranks(len(batches), lambda rank: train(rank, batches, buffers, joins=True))


def ddp(rank, layer):
    layers = torch.nn.Sequential(torch.nn.Linear(2, 3), layer)
    DistributedDataParallel(layers.cuda(), device_ids=[rank])


def only_first(rank):
    if rank == 0:
        ddp(rank, torch.nn.Linear(3, 3))
    dist.all_reduce(torch.ones(1, device="cuda"))


# Models that differ by more than the shapes of parameters, which PyTorch compares; or there is one.
BROADCAST = "DistributedDataParallel's broadcast of parameters and buffers when it is made"
OTHERS = {
    "buffers": (lambda rank: ddp(rank, torch.nn.BatchNorm1d(3 + rank, affine=False)), BROADCAST),
    "dtypes": (
        lambda rank: ddp(rank, torch.nn.Linear(3, 3, dtype=[torch.float, torch.double][rank])),
        BROADCAST,
    ),
    "one": (only_first, "DistributedDataParallel's comparison of parameters when it is made"),
}


@pytest.mark.parametrize("differing", OTHERS)
def test_differing_models_are_reported_by_the_step_that_makes_them(differing):
    make, step = OTHERS[differing]
    with pytest.raises(CollectiveMismatchError) as raised:
        simgpu.ranks(2, make)
    assert step in str(raised.value)
    assert "Join" not in str(raised.value)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
@given(count=st.integers(2, 4))
def test_ranks_with_the_same_error_are_listed_in_a_line(count):
    with pytest.raises(CollectiveMismatchError) as raised:
        simgpu.ranks(count, lambda rank: dist.all_reduce(torch.ones(1 + rank, device="cuda")))
    assert "DistributedDataParallel" not in str(raised.value), "no step of it"
    first, others = raised.value.__notes__
    assert first.endswith(f" of {count}")
    assert others.endswith("raised the same error")
    assert sorted(int(c) for c in first.split(" of ")[0] + others if c.isdigit()) == [*range(count)]


def test_error_reported_by_another_rank_prints_one_line(simulated, capsys):
    error = CollectiveMismatchError("call 1 of group '0' is not the same on all ranks: rank 0: ...")
    error.reported_by = 0
    sys.excepthook(type(error), error, None)
    (line,) = capsys.readouterr().err.splitlines()
    assert "call 1 of group '0'" in line
    assert line.endswith("(see the traceback of rank 0)")


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["-u", "-m", "simgpu", "run", "--devices", "4", __file__, "--epochs", "2"], __file__),
        (["-u", "-m", "simgpu", "run", "-m", "trainer"], "simgpu run"),
        (["-u", __file__, "run"], __file__),
    ],
)
def test_torchruns_summary_names_the_program(args, name):
    assert api._get_entrypoint_name(sys.executable, args) == name


@settings(max_examples=5)
@given(calls=st.integers(1, 3), moves=st.integers(0, 1))
def test_changed_device_is_reported_with_its_first_call(calls, moves):
    def call(rank):
        for _ in range(calls):
            dist.barrier(device_ids=[rank])
        there = 1 - rank if rank == moves else rank
        dist.all_reduce(torch.ones(3, device=f"cuda:{there}"))

    with pytest.raises(CollectiveMismatchError) as raised:
        simgpu.ranks(2, unbound(call))
    shown = f"SUM, on the device cuda:{1 - moves} first used in call {calls + 1} at {__file__}:"
    assert shown in str(raised.value)


# `simgpu run --summary` and `--trace`.


def add(rank):
    x = torch.ones(1000, device="cuda")
    dist.all_reduce(x)
    dist.broadcast(x, 1)


@pytest.mark.ranks(2)
def test_collectives_are_in_table_and_timeline(ranks, tmp_path):
    table, file = io.StringIO(), tmp_path / "trace.json"
    with watch(str(file), table):
        ranks(add)
    rows = [line.split() for line in table.getvalue().splitlines()]
    assert ["allreduce", "2", "7.81", "KiB", "0", "(2", "ranks)"] in rows
    [*_, last] = [line for line in rows if line[0] == "broadcast"]
    assert last[1:4] == ["2", "7.81", "KiB"]  # the root, which writes nothing, sends them
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    seen = [event for event in events if event.get("cat") == "collective"]
    assert {(e["pid"] - 1, e["args"]["number"], e["name"]) for e in seen} == {
        (rank, number, name)
        for rank in range(2)
        for number, name in ((1, "c10d.allreduce_"), (2, "c10d.broadcast_"))
    }
    about = {tuple(event["args"][name] for name in ("bytes", "group", "peer")) for event in seen}
    assert about == {(4000, "0", None)}
    assert all(event["args"]["ranks"] == [0, 1] for event in seen)


def test_ranks_of_a_run_write_one_trace_file(tmp_path, monkeypatch):
    file = tmp_path / "trace.json"
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        table = io.StringIO()
        with simgpu.as_cuda(2), watch(str(file), table):
            torch.ones(3, device=f"cuda:{rank}") + 1
        assert table.getvalue().startswith(f"rank {rank} of 2\ndevice ")
        assert file.exists() == (rank == 0)
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "rank 0, cuda:0",
        "rank 1, cuda:1",
    }
    begins = {e["pid"] // 1000: e["ts"] for e in events if e.get("cat") == "kernel"}
    assert begins[1] < begins[0]  # one clock for all
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
