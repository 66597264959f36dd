"""torch.cuda.Event(external=True): recorded and waited for by each replay of a graph."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._runtime import instruments
from simgpu.errors import CaptureError
from tests.support.plant import Edit, run


class Log(instruments.Instrument):
    """What kernels ran, and which events were recorded and waited for, in order."""

    def __init__(self, events):
        self.events, self.seen = events, []

    def after_launch(self, launch, record):
        if record.kind == "kernel":
            self.seen.append(record.op)

    def event_recorded(self, event, stream):
        if event in self.events:
            self.seen.append(("records", self.events.index(event)))

    def stream_waits(self, stream, awaited):
        if awaited in self.events:
            self.seen.append(("waits", self.events.index(awaited)))


def logged(events, work):
    log = Log(events)
    instruments.add(log)
    try:
        work()
    finally:
        instruments.remove(log)
    return log.seen


steps = st.tuples(st.sampled_from(["mul_", "add_", "records", "waits"]), st.integers(0, 1))


@given(steps=st.lists(steps, min_size=1, max_size=8), replays=st.integers(1, 3))
def test_each_replay_does_what_the_program_would(cuda, steps, replays):
    x = torch.ones(3, device="cuda")
    events = [torch.cuda.Event(external=True) for _ in range(2)]

    def program():
        x.mul_(1)  # a graph of no kernels is warned of
        for step, number in steps:
            if step == "records":
                events[number].record()
            elif step == "waits":
                events[number].wait()
            else:
                getattr(x, step)(number)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program()
    assert all(event.query() for event in events)  # not recorded yet
    expected = logged(events, program)
    for _ in range(replays):
        assert logged(events, graph.replay) == expected


# What would be wrong, for which that property is.
FAULTS = {
    "an external event is recorded in the capture, and never again": Edit(
        "simgpu._runtime.events:Event._is_node", "return True", "return False"
    ),
    "an external event of a captured stream is marked at once": Edit(
        "simgpu._runtime.events:Event._is_node", "not in captured", "in captured"
    ),
    "a replay records an event where the program waits for it": Edit(
        "simgpu._memory.graphs:Graph.replay", "if work.records else", "if True else"
    ),
    "a graph knows nothing of the events in it": Edit(
        "simgpu._memory.graphs:Recording.external_event", "if self.holds", "if not self.holds"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(cuda, name):
    with FAULTS[name].planted(), pytest.raises((AssertionError, CaptureError)):
        run(test_each_replay_does_what_the_program_would, cuda=cuda)


@pytest.mark.parametrize("external", [False, True])
def test_only_external_events_measure_within_a_graph(cuda, external):
    begin, end = (torch.cuda.Event(enable_timing=True, external=external) for _ in range(2))
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        begin.record()
        x.mul_(2)
        end.record()
    if not external:
        with pytest.raises(CaptureError, match="invalid argument"):
            begin.elapsed_time(end)
        return
    with pytest.raises(ValueError, match="must be recorded before"):
        begin.elapsed_time(end)
    with simgpu.clock("A100"):
        graph.replay()
        end.synchronize()
        assert begin.elapsed_time(end) > 0


@pytest.mark.parametrize("external", [False, True])
def test_a_wait_in_a_graph_depends_on_work_outside_only_if_it_is_external(cuda, external):
    event, x = torch.cuda.Event(external=external), torch.ones(3, device="cuda")
    event.record()
    refused = contextlib.nullcontext() if external else pytest.raises(CaptureError)
    graph = torch.cuda.CUDAGraph()
    with refused, torch.cuda.graph(graph):
        event.wait()
        x.mul_(2)
    if external:
        graph.replay()
    assert x.tolist() == [2.0 if external else 1.0] * 3
