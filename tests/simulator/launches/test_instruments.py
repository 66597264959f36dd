"""Instruments and `simgpu.trace`: what they see of device work, in which order, and may stop."""

import gc
import os
import threading

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import dataparallel
import simgpu
from simgpu._core import hooks as core_hooks
from simgpu._core import world
from simgpu._core.allocator_model import size_of
from simgpu._core.hooks import Instrument, hooks
from simgpu._util import frames
from simgpu._util.frames import calling_line
from tests.support import strategies
from tests.support.chunk_rule import chunk_sizes
from tests.support.instruments import added
from tests.support.observe import ExactNet, values

NAMES = [name for name in vars(Instrument) if not name.startswith("_")]


def listening(*names):
    """An instrument that overrides these methods, and the calls that it has seen."""
    seen = []

    def method(name):
        return lambda self, *args: seen.append((name, *args))

    return type("Listening", (Instrument,), {name: method(name) for name in names})(), seen


@pytest.mark.without("--async", "--races", reason="there is an instrument more")
@given(lists=st.lists(st.lists(st.sampled_from(NAMES), unique=True), max_size=4), data=st.data())
def test_hook_holds_overrides_in_their_order(lists, data):
    before = {name: getattr(hooks, name) for name in NAMES}
    listeners = [listening(*names)[0] for names in lists]
    gone = data.draw(st.sets(st.integers(0, max(0, len(lists) - 1))))
    with added(*listeners):
        for index in sorted(gone & set(range(len(lists)))):
            core_hooks.remove(listeners[index])
        for name in NAMES:
            expected = [
                getattr(instrument, name)
                for index, instrument in enumerate(listeners)
                if name in lists[index] and index not in gone
            ]
            assert getattr(hooks, name) == (*before[name], *expected)
            of_launches = ("before_launch", "computed", "launched", "after_launch")
            assert hooks.launches == any(getattr(hooks, name) for name in of_launches)
    assert {name: getattr(hooks, name) for name in NAMES} == before


@given(data=st.data())
def test_launches_and_copies_are_reported_before_and_after(simulated, data):
    here, there = data.draw(st.lists(st.sampled_from(simulated), min_size=2, max_size=2))
    instrument, seen = listening("before_launch", "after_launch")
    x = torch.ones(3, device=here)
    with added(instrument):
        x.exp()
        x.to(there)
    names = [name for name, *_ in seen]
    kinds = [launch.kind for _, launch, *_ in seen[::2]]
    assert names == ["before_launch", "after_launch"] * (1 + (here != there))
    assert kinds == ["kernel", "copy"][: len(kinds)]
    for (_, launch), (_, same, record) in zip(seen[::2], seen[1::2], strict=True):
        assert launch is same
        reported = ("kind", "op", "device", "stream", "source", "target")
        assert [getattr(launch, field) for field in reported] == [
            getattr(record, field) for field in reported
        ]
        assert launch.device == here
        assert all(part.is_cpu for part in launch.args if isinstance(part, torch.Tensor))
    assert seen[-1][1].target == there


@given(data=st.data())
def test_refused_launch_changes_nothing(simulated, data):
    device = data.draw(st.sampled_from(simulated))

    class Refuses(Instrument):
        def before_launch(self, launch):
            if launch.op == "add_.Tensor":
                raise KeyError(launch.op)

    x = torch.ones(3, device=device)
    with added(Refuses()):
        with pytest.raises(KeyError, match="add_"):
            x.add_(x.clone())
        x.mul_(5)
    assert x.tolist() == [5.0] * 3
    x.add_(1)
    assert x.tolist() == [6.0] * 3


@given(data=st.data(), count=st.integers(0, 2000))
def test_memory_is_reported_by_device_in_whole_blocks(simulated, data, count):
    device = data.draw(st.sampled_from(simulated))
    seen = []

    class Memory(Instrument):
        def before_allocate(self, device, nbytes):
            seen.append(("before_allocate", device, nbytes))

        def allocated(self, device, block, storage, allocation):
            seen.append(("allocated", device, size_of(block)))

        def freed(self, device, block):
            seen.append(("freed", device, size_of(block)))

    nbytes = -(-count // 512) * 512
    with added(Memory()):
        x = torch.empty(count, dtype=torch.uint8, device=device)
        del x
        assert torch.simgpu.memory_allocated(device) == 0  # asks the ledger
    assert seen == [
        ("before_allocate", device, nbytes),
        ("allocated", device, nbytes),
        ("freed", device, nbytes),
    ]


def test_running_out_of_memory_notifies_before_it_raises():
    seen = []
    with simgpu.devices(2, memory="1MiB") as devices:
        world.current_world().full.append(lambda *call: seen.append(call))
        kept = torch.empty(2**19, dtype=torch.uint8, device=devices[1])
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**20, dtype=torch.uint8, device=devices[1])
        del kept
        assert seen == [(world.device(1), 2**20)]


def test_streams_events_and_synchronizing_are_reported(simulated):
    device = simulated[1]
    names = ("stream_waits", "event_recorded", "used_on_stream", "host_synchronizes")
    instrument, seen = listening(*names)
    side, current = torch.simgpu.Stream(device), torch.simgpu.default_stream(device)
    event, x = torch.simgpu.Event(), torch.ones(2, device=device)
    with torch.simgpu.device(device), added(instrument):
        side.wait_stream(current)
        event.record(side)
        event.record()
        side.wait_event(event)
        event.wait()
        event.wait(side)
        x.record_stream(side)
        side.synchronize()
        event.synchronize()
        torch.simgpu.synchronize(device)
        torch.simgpu.synchronize()
    assert [call[0] for call in seen] == [
        "stream_waits",
        *["event_recorded"] * 2,
        *["stream_waits"] * 3,
        "used_on_stream",
        *["host_synchronizes"] * 4,
    ]
    assert [call[1:] for call in seen[:6]] == [
        (side, current),
        (event, side),
        (event, current),
        (side, event),
        (current, event),
        (side, event),
    ]
    assert seen[6][1:] == (x.data_ptr(), side)
    assert [call[1] for call in seen[7:]] == [side, event, device, device]


@given(count=st.integers(1, 8))
def test_devices_come_and_go(count):
    instrument, seen = listening("devices_changed")
    with added(instrument), simgpu.devices(count) as devices:
        pass
    assert seen == [("devices_changed", devices), ("devices_changed", [])]


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_can_add_an_instrument_whose_parent_held_the_lock(python):
    """The lock is renewed in the child: with the parent's, adding the fork check would hang."""
    done = python(
        "-c",
        "import os, simgpu, torch\n"
        "from simgpu._core import hooks\n"
        "with simgpu.devices(1):\n"
        "    x = torch.ones(2, device='simgpu')\n"
        "    with hooks._lock:\n"
        "        child = os.fork()\n"
        "    if child == 0:\n"
        "        try: x + 1\n"
        "        except RuntimeError as error: os._exit(7 if 'forked' in str(error) else 1)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n",
    )
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


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
