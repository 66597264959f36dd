"""torch.cuda.Event(external=True): recorded and waited for by each replay of a graph."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import hooks
from simgpu.errors import CaptureError


class Log(hooks.Instrument):
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
    hooks.add(log)
    try:
        work()
    finally:
        hooks.remove(log)
    return log.seen


steps = st.tuples(st.sampled_from(["mul_", "add_", "records", "waits"]), st.integers(0, 1))


@given(steps=st.lists(steps, min_size=1, max_size=8), replays=st.integers(1, 3))
def test_replay_records_and_waits_as_the_program(cuda, steps, replays):
    x = torch.ones(3, device="cuda")
    captured = [torch.cuda.Event(external=True) for _ in range(2)]
    events = captured[:]

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
    events[:] = [torch.cuda.Event(external=True) for _ in range(2)]
    expected = logged(events, program)
    for number in range(2):  # a wait for an event that was never recorded does nothing
        assert [each[0] for each in expected if each[1:] == (number,)][:1] != ["waits"]
    events[:] = captured
    for _ in range(replays):
        assert logged(events, graph.replay) == expected


@pytest.mark.parametrize("external", [False, True])
def test_only_external_events_measure_within_a_graph(cuda, external):
    begin, end = (torch.cuda.Event(enable_timing=True, external=external) for _ in range(2))
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        begin.record()
        x.mul_(2)
        end.record()
    if not external:
        outside = torch.cuda.Event(enable_timing=True)
        outside.record()
        for pair in ((begin, end), (begin, outside), (outside, end)):
            with pytest.raises(CaptureError, match="event last recorded in a capturing stream"):
                pair[0].elapsed_time(pair[1])
        return
    with pytest.raises(CaptureError, match="invalid resource handle"):
        begin.elapsed_time(end)
    with simgpu.clock("A100"):
        graph.replay()
        end.synchronize()
        assert begin.elapsed_time(end) > 0


@given(
    method=st.booleans(),
    external=st.booleans(),
    recorded=st.booleans(),
    current=st.booleans(),
)
def test_a_wait_in_a_capture_depends_on_the_current_stream(
    cuda, method, external, recorded, current
):
    """As PyTorch asks: `on` has joined the capture, and is current or not; so `out` has not."""
    on, out, event = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event(external=external)
    x, graph, seen = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph(), []
    if recorded:
        event.record(out)

    def wait(stream):
        stream.wait_event(event) if method else event.wait(stream)

    # No stream but a captured one may wait by a node, and by no node for what is not captured.
    no_node, no_wait = external and not current, current and not external

    def program():
        x.mul_(1)
        on.wait_stream(torch.cuda.current_stream())
        with refused(recorded and no_node, "invalid argument"):
            seen[:] = logged([event], lambda: wait(on if current else out))
        torch.cuda.current_stream().wait_stream(on)

    with refused(recorded and no_wait), torch.cuda.graph(graph):
        program()
    if not (recorded and no_wait):
        assert seen == [("waits", 0)] * (recorded and not external)
        assert logged([event], graph.replay)[1:] == [("waits", 0)] * (recorded and current)


def refused(expected, match="error"):
    return pytest.raises(CaptureError, match=match) if expected else contextlib.nullcontext()


@given(external=st.booleans())
def test_event_recorded_on_a_stream_that_is_not_current_is_no_node(cuda, external):
    """Of two devices: the second one's stream has joined, and is not current there."""
    x, joined = torch.ones(3, device="cuda:0"), torch.cuda.Stream("cuda:1")
    event, graph = torch.cuda.Event(external=external), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(1)
        joined.wait_stream(torch.cuda.current_stream())
        event.record(joined)
        torch.cuda.current_stream().wait_stream(joined)
    with pytest.raises(CaptureError, match="event last recorded in a capturing stream"):
        event.query()
    assert logged([event], graph.replay) == ["mul_.Scalar"]


@given(index=st.integers(1, 3))
def test_a_replay_records_on_the_device_that_the_capture_recorded_on(cuda, index):
    x, joined = torch.ones(3, device="cuda:0"), torch.cuda.Stream(f"cuda:{index}")
    event, graph = torch.cuda.Event(external=True), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(1)
        joined.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(joined):
            event.record()
        torch.cuda.current_stream().wait_stream(joined)
    assert logged([event], graph.replay) == ["mul_.Scalar", ("records", 0)]
    assert event.device.index == index
