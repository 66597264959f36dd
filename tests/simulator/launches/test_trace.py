"""simgpu.trace(): every kernel and every copy, in order, with device, bytes, thread and line."""

import gc
import threading

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import dataparallel
import simgpu
from simgpu._util import frames
from simgpu._util.frames import calling_line
from tests.support import strategies
from tests.support.chunk_rule import chunk_sizes
from tests.support.observe import ExactNet, values


def test_only_the_block_is_seen(simulated):
    x = torch.ones(2, device=simulated[1])
    x.exp()
    with simgpu.trace() as outer:
        x.sin()
        with simgpu.trace() as inner:
            x.cos()
    x.tan()
    assert [record.op for record in outer] == ["sin", "cos"]
    assert [record.op for record in inner] == ["cos"]


def test_work_on_the_cpu_is_not_seen(simulated):
    with simgpu.trace() as trace:
        torch.ones(3).exp().sum().item()
    assert trace == []


def test_every_thread_is_seen_by_name(simulated):
    x = torch.ones(2, device=simulated[0])
    with simgpu.trace() as trace:
        workers = [threading.Thread(target=x.exp, name=f"worker {k}") for k in range(3)]
        for worker in workers:
            worker.start()
            worker.join()
    assert [record.thread for record in trace] == ["worker 0", "worker 1", "worker 2"]


@given(case=strategies.step_cases(min_batch=8))
def test_parameters_go_out_once_and_gradients_come_back_once(simulated, case):
    """The bytes between devices in one step are those that data parallelism needs."""
    targets = [simulated[slot] for slot in case.slots]
    net = ExactNet(case.shape[1], "float32").to(targets[0])
    model = dataparallel.DataParallel(net, device_ids=targets)
    x = values(case.shape, "float32").to(targets[0])
    weights = sum(p.numel() * 4 for p in net.parameters())
    sizes = chunk_sizes(case.shape[0], len(targets))
    replicas = len(sizes)
    with simgpu.trace() as forward:
        out = model(x)
    with simgpu.trace() as backward:
        out.sum().backward()
    for target, size in zip(targets[1:replicas], sizes[1:], strict=True):
        rows_in, rows_out = size * case.shape[1] * 4, size * 2 * 4
        assert forward.bytes_copied(targets[0], target) == weights + rows_in
        assert forward.bytes_copied(target, targets[0]) == rows_out
        assert backward.bytes_copied(targets[0], target) == rows_out
        assert backward.bytes_copied(target, targets[0]) == weights
        ends = [(record.source, record.target) for record in backward]
        assert ends.count((target, targets[0])) == 1  # in one bucket


@given(
    places=st.permutations(range(3)),
    size=st.integers(1, 9),
    name=st.sampled_from([str, torch.device]),
    kind=st.sampled_from(["cuda", "simgpu"]),
)
@example(places=[0, 1, 2], size=1, name=str, kind="simgpu")
def test_copies_between_devices_by_the_name_of_cuda_are_counted(places, size, name, kind):
    """While they go by it, and when the trace is read afterwards, by either name."""
    with simgpu.as_cuda(3) as devices, simgpu.trace() as trace:
        source, target, other = (f"{kind}:{place}" for place in places)
        torch.ones(size, device=devices[places[0]]).to(devices[places[1]])
        assert trace.bytes_copied(name(source), name(target)) == 4 * size
    assert trace.bytes_copied(name(source), name(target)) == 4 * size
    assert trace.bytes_copied(source, other) == 0


@given(place=st.integers(0, 2), as_cuda=st.booleans())
def test_records_have_devices_by_the_name_that_tensors_have(place, as_cuda):
    with simgpu.as_cuda(3) if as_cuda else simgpu.devices(3) as devices, simgpu.trace() as trace:
        x = torch.ones(2, device=devices[place])
        x.cpu()
        assert {record.device for record in trace} == {x.device} == {devices[place]}
    *made, copied = trace
    assert {end for record in made for end in (record.source, record.target)} == {devices[place]}
    assert copied.source == devices[place]
    assert copied.target == torch.device("cpu")


@pytest.mark.parametrize("name", [str, torch.device])
@pytest.mark.parametrize("kind", ["simgpu", "cuda"])
def test_copies_of_a_device_that_may_be_any_are_not_counted(simulated, kind, name):
    """As none, which 0 would say; the host is one place, whatever its number."""
    with simgpu.trace() as trace:
        torch.ones(2, device=simulated[1]).to("cpu")
    for wrong in ({"source": name(kind)}, {"target": name(kind)}):
        with pytest.raises(ValueError, match=f"use '{kind}:0'"):
            trace.bytes_copied(**wrong)
    assert trace.bytes_copied(simulated[1], name("cpu:0")) == 8


# Each puts into a list where it was asked for: by the program itself, or by a function of torch.
ASKING = ("found.append(place())", "found.append(by_torch())")

files = st.sampled_from(["one.py", "two.py", "three.py"])


lines = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(ASKING)), min_size=1)


@given(programs=st.lists(st.tuples(files, lines), min_size=2))
def test_calling_line_is_the_line_that_runs(programs):
    """Also where a program that has ended leaves the address of its code to the next one."""
    by_torch = torch.no_grad()(calling_line)
    for file, asking in programs:
        found, wanted, text = [], [], ""
        for gap, line in asking:
            text += "\n" * gap + f"{line}\n"
            wanted.append(f"{file}:{text.count(chr(10))}")
        names = {"found": found, "place": calling_line, "by_torch": by_torch}
        exec(compile(text, file, "exec"), names)
        assert found == wanted


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_frames_are_asked_for(monkeypatch, collects):
    """A collection would wait for a lock that the interpreter holds until it has them all."""
    seen = []
    monkeypatch.setattr(frames.sys, "_current_frames", lambda: seen.append(gc.isenabled()) or {})
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        frames.current_frames()
        seen.append(gc.isenabled())
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False, collects]
