"""Instruments: what they are told of device work, in which order, and what they may stop."""

import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import hooks as core_hooks
from simgpu._core import world
from simgpu._core.allocator_model import size_of
from simgpu._core.hooks import Instrument, hooks
from tests.support.instruments import added

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
