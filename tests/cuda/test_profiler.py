"""torch.profiler shows the kernels, copies and memory of devices that appear as CUDA devices."""

import contextlib
import json
import threading
from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

import simgpu

BOTH = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
DEVICE = torch._C._autograd.DeviceType.CUDA


def of_devices(profiled):
    return [event for event in profiled.events() if event.device_type == DEVICE]


def work():
    """A product, work of another stream and copies of each kind; returns that stream's number."""
    x = torch.ones(8, 8).cuda()
    with torch.profiler.record_function("product"):
        x @ x
    with torch.cuda.stream(torch.cuda.Stream()):
        x + 1
        number = torch.cuda.current_stream().stream_id
    x.to("cuda:1") + 1
    x.cpu()
    return number


@pytest.mark.parametrize("clock", [contextlib.nullcontext, lambda: simgpu.clock("A100")])
def test_each_launch_is_an_event_of_its_operator(cuda, clock):
    assert ProfilerActivity.CUDA in supported_activities()
    with clock() as estimate:
        if estimate:
            torch.cuda._sleep(10**10)  # seconds
            torch.cuda.synchronize()
        with profile(activities=BOTH) as seen, simgpu.trace() as trace:
            work()
    launches = [record for record in trace if record.kind != "memory"]
    events = sorted(of_devices(seen), key=lambda event: event.id)
    rows_of_events = [(event.device_index, event.device_resource_id) for event in events]
    assert rows_of_events == [(record.device.index, record.stream) for record in launches]
    if estimate:
        begins = [(record.begin - launches[0].begin) * 1e6 for record in launches]
        first = events[0].time_range.start
        assert 0 <= first < 1e6
        assert [event.time_range.start - first for event in events] == pytest.approx(begins)
    took = [round((record.end - record.begin) * 1e6, 3) for record in launches]
    assert [round(event.time_range.elapsed_us(), 3) for event in events] == took
    copies = ["Memcpy HtoD (Pageable -> Device)", "Memcpy PtoP (Device -> Device)"]
    copies += ["Memcpy DtoH (Device -> Pageable)"]
    assert [e.name for e in events] == [
        copies[0],
        "mm",
        "add.Scalar",
        copies[1],
        "add.Scalar",
        copies[2],
    ]
    rows = {row.key: row for row in seen.key_averages()}
    assert rows["aten::mm"].self_device_time_total == rows["mm"].self_device_time_total
    assert rows["product"].device_time_total == rows["aten::mm"].device_time_total
    assert rows["cudaLaunchKernel"].count == 3
    assert rows["cudaMemcpyAsync"].count == 3
    assert not any("#" in name for name in rows)


@pytest.mark.parametrize("estimated", [False, True])
def test_table_names_times_of_the_host(cuda, estimated):
    clock = simgpu.clock("A100") if estimated else contextlib.nullcontext()
    with clock, profile(activities=BOTH) as seen:
        torch.ones(2, device="cuda")
    table = seen.key_averages().table(sort_by="device_time_total")
    assert ("CUDA total" in table) == estimated
    assert ("CUDA (host) total" in table) != estimated


@pytest.mark.parametrize("estimated", [False, True])
def test_exported_trace_has_a_row_for_each_stream(cuda, tmp_path, estimated):
    clock = simgpu.clock("A100") if estimated else contextlib.nullcontext()
    with clock, profile(activities=BOTH) as seen:
        number = work()
    work()
    seen.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    on_devices = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
    assert Counter((e["pid"], e["tid"]) for e in on_devices) == {
        (0, 0): 4,
        (0, number): 1,
        (1, 0): 1,
    }
    marks = {e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime"}
    begins = {event.id: event.time_range.start for event in of_devices(seen)}
    for event in on_devices:
        begin = event["args"]["correlation"]
        since = event["ts"] - on_devices[0]["ts"]
        assert since == pytest.approx(begins[begin] - begins[min(begins)], abs=0.01)
        assert estimated or marks[begin]["ts"] == event["ts"]
    arrows = Counter((e["ph"], e["id"]) for e in events if e.get("cat") == "ac2g")
    assert arrows == {(end, number): 1 for end in "sf" for number in marks}
    titles = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert titles == titles | {0: "cuda:0", 1: "cuda:1"}


def test_memory_of_devices_is_counted(cuda):
    with profile(activities=BOTH, profile_memory=True) as seen:
        kept = torch.ones(256, device="cuda") + 1
        with torch.profiler.record_function("freed"):
            del kept
            torch.cuda.memory_allocated()
    rows = {row.key: row for row in seen.key_averages()}
    assert rows["aten::add"].device_memory_usage == 1024
    assert rows["freed"].device_memory_usage == -2048  # and that of ones


def test_profile_of_devices_alone_follows_a_schedule(cuda):
    cycles = []
    steps = schedule(wait=0, warmup=1, active=1, repeat=2)

    def ready(profiled):
        cycles.append([event.name for event in of_devices(profiled)])

    x = torch.ones(2, device="cuda")
    with profile(
        activities=BOTH[1:], schedule=steps, on_trace_ready=ready, acc_events=True
    ) as seen:
        for function in (torch.sin, torch.cos, torch.exp, torch.tan):
            function(x)
            seen.step()
        assert {event.device_type for event in seen.events()} == {DEVICE}
    assert cycles == [["cos"], ["tan", "cos"]]  # PyTorch appends those of earlier cycles


def test_profile_outlives_the_devices():
    with simgpu.as_cuda(1, force=True):
        seen = profile(activities=BOTH)
        seen.start()
        torch.ones(2, device="cuda")
        thread = threading.Thread(target=torch.ones, args=[2], kwargs={"device": "cuda"})
        thread.start()
        thread.join()
    seen.stop()
    assert [event.name for event in of_devices(seen)] == ["fill_.Scalar"] * 2


def test_launch_ends_within_its_operator_also_where_it_fails(cuda):
    x = torch.ones(2, 2, device="cuda")
    with profile(activities=BOTH) as seen:
        with simgpu.faults(launch_at=0), pytest.raises(RuntimeError):
            x + 1
        x + 1
    launches = [each for each in seen.events() if each.name == "cudaLaunchKernel"]
    assert [each.cpu_parent.name for each in launches] == ["aten::add"] * 2
