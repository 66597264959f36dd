"""Collectives in `simgpu run --summary` and `--trace`, and one file for the ranks of a run."""

import io
import json

import pytest
import torch
from torch import distributed as dist

import simgpu
from simgpu._profiling.watch import watch


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
