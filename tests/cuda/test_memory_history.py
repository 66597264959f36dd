"""memory_snapshot and the history of allocations, in the form that PyTorch's visualiser reads."""

import json
import pickle

import pytest
import torch
from torch.cuda import _memory_viz

import simgpu


@pytest.fixture
def recorded(cuda):
    yield torch.cuda.memory._record_memory_history
    torch.cuda.memory._record_memory_history(None)


def blocks(device=0):
    segments = torch.cuda.memory._snapshot()["segments"]
    found = [block for s in segments if s["device"] == device for block in s["blocks"]]
    return [block for block in found if block["state"] == "active_allocated"]


def events(device=0):
    return torch.cuda.memory._snapshot()["device_traces"][device]


def names(frames):
    return [frame["name"] for frame in frames]


def makes_a_tensor(*shape, device="cuda:0"):
    return torch.ones(shape, device=device)


def frees(tensors):
    tensors.clear()


@pytest.mark.parametrize("stacks", ["python", "all"])
def test_every_block_has_the_line_of_its_allocation(recorded, stacks):
    recorded("state", stacks=stacks)
    other = torch.ones(5, device="cuda:1")
    x = makes_a_tensor(311, 411)
    (block,) = blocks()
    assert block["requested_size"] == x.nbytes
    assert block["address"] == x.untyped_storage().data_ptr()
    assert block["size"] == torch.cuda.memory_allocated()
    python = [frame for frame in block["frames"] if frame["filename"].endswith(".py")]
    assert names(python)[:2] == [
        "makes_a_tensor",
        "test_every_block_has_the_line_of_its_allocation",
    ]
    assert ("at::" in str(block["frames"])) == (stacks == "all")
    traceback = torch._C._cuda_allocationTraceback
    assert traceback(x.untyped_storage().data_ptr()) == block["frames"]
    assert traceback(other.data_ptr()) == blocks(1)[0]["frames"] != block["frames"]
    assert traceback(x.data_ptr() + 4) is None
    assert events() == []


@pytest.mark.parametrize("context", [None, "state", "alloc", "all"])
def test_events_are_reported_in_order(recorded, context):
    recorded("all", context=context, stacks="python")
    tensors = [makes_a_tensor(3), makes_a_tensor(4)]
    frees(tensors)
    reported = events()
    kinds = ["alloc", "alloc", *2 * ["free_requested", "free_completed"]]
    assert [event["action"] for event in reported] == kinds
    assert {event["addr"] for event in reported[:2]} == {event["addr"] for event in reported[2:]}
    assert [event["size"] for event in reported] == [12, 16, 16, 16, 12, 12]
    made = ["makes_a_tensor" in names(event["frames"]) for event in reported[:2]]
    freed = ["frees" in names(event["frames"]) for event in reported[2:]]
    assert made == 2 * [context in ("alloc", "all")]
    assert freed == 4 * [context == "all"]
    times = [event["time_us"] for event in reported]
    assert times == sorted(times)


def test_full_device_is_reported(recorded):
    recorded(stacks="python")
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
    x = torch.ones(128, device="cuda:1")
    with pytest.raises(torch.cuda.OutOfMemoryError, match="Tried to allocate"):
        torch.empty(2**40 + 1, device="cuda:1")
    total, free = 16 * 2**30, 16 * 2**30 - 2**21
    assert seen == [(1, 2**42 + 2**21, total, free)]
    reported = events(1)[-1]
    assert [reported[name] for name in ("action", "size", "device_free")] == [
        "oom",
        2**42 + 512,
        free,
    ]
    with pytest.raises(RuntimeError, match="Tried to allocate more than 1EB memory"):
        torch.empty(2**60, dtype=torch.int8, device=x.device)


def test_visualiser_reads_a_snapshot(recorded):
    recorded(stacks="python")
    x = makes_a_tensor(20)
    snapshot = torch.cuda.memory._snapshot()
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    assert "makes_a_tensor" in json.dumps(snapshot)
    assert ":80.0B]" in _memory_viz.trace(snapshot)
    summary = _memory_viz.segsum(snapshot).splitlines()
    assert {"segments: 1", "total_reserved: 2.0MiB", "total_allocated: 80.0B"} <= {*summary}
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<script" in plot(snapshot)
    assert x.nbytes == 80


def test_oldest_events_are_dropped(recorded):
    recorded(max_entries=3, stacks="python")
    for _ in range(4):
        makes_a_tensor(2)
    assert len(events()) == 3
    recorded(max_entries=3, stacks="python", clear_history=True)
    assert events() == []


def test_a_history_ends_with_its_devices():
    with simgpu.as_cuda(1):
        torch.cuda.memory._record_memory_history(stacks="python")
        x = makes_a_tensor(5)
    with simgpu.as_cuda(1):
        assert not torch._C._cuda_isHistoryEnabled()
        makes_a_tensor(5)
        assert (events(), blocks()) == ([], [])
    assert x.nbytes == 20


def test_history_omits_events_after_its_end(recorded):
    recorded(stacks="python")
    kept = [makes_a_tensor(2)]
    recorded(None)
    before = events()
    frees(kept)
    torch.cuda.memory_stats()
    assert events() == before
