"""Reports of collectives: those that differ among ranks, and those of a trace."""

import io
import json
import sys

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.algorithms import Join
from torch.distributed.launcher import api
from torch.nn.parallel import DistributedDataParallel

import simgpu
from simgpu._profiling.watch import watch
from simgpu.errors import CollectiveMismatchError, DeadlockError
from tests.support.worlds import unbound

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
