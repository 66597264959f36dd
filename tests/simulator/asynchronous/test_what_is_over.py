"""What is left in the queues of work that has run, or that never will: nothing."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._explore.asynchronous.queues import Work
from simgpu.errors import DeviceLostError


@pytest.mark.without("--races", reason="races on purpose")
@given(
    before=st.integers(0, 2),
    behind=st.lists(st.integers(0, 2), max_size=5),
    elsewhere=st.integers(0, 3),
)
def test_a_lost_device_has_nothing_to_do(before, behind, elsewhere):
    """Whatever waits behind the kernel that failed, on its stream and on others."""
    with simgpu.devices(2) as (device, other):
        x, index = torch.ones(3).to(device), torch.tensor([7]).to(device)
        y = torch.ones(3).to(other)
        with simgpu.asynchronous() as queued:
            streams = [torch.simgpu.current_stream(device)]
            streams += [torch.simgpu.Stream(device) for _ in range(2)]
            for _ in range(before):
                x = x + 1
            x.index_select(0, index)
            for number in behind:
                with streams[number]:
                    x + 1
            for _ in range(elsewhere):
                y = y + 1
            assert queued.pending == before + 1 + len(behind) + elsewhere
            with pytest.raises(DeviceLostError, match="index_select"):
                streams[0].synchronize()
            assert queued.pending == elsewhere
            assert y.tolist() == [1.0 + elsewhere] * 3


def work_left(device, rounds):
    """How much work is remembered when two streams have waited for each other in turns."""
    streams = [torch.simgpu.Stream(device) for _ in range(2)]
    event = torch.simgpu.Event()
    with simgpu.asynchronous() as queued:
        with streams[1]:
            torch.zeros(3, device=device).add_(1)
        event.record(streams[1])
        for number in range(2 * rounds):
            streams[number % 2].wait_event(event)
            with streams[number % 2]:
                torch.zeros(3, device=device)
            event = torch.simgpu.Event()
            event.record(streams[number % 2])
        assert queued.pending > 2 * rounds
        torch.simgpu.synchronize(device)
        gc.collect()
        return sum(type(found) is Work for found in gc.get_objects())


@given(rounds=st.integers(40, 60))
def test_an_event_keeps_nothing_of_what_came_before(simulated, rounds):
    """Each kernel comes after the one before: once it has run, it is forgotten."""
    assert work_left(simulated[0], rounds) == work_left(simulated[0], 1)
