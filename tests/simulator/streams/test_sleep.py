"""Streams that sleep: who waits for them, until when, by a clock that only waiting moves."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._core import clock, streams, world
from tests.support.instruments import StoppedClock

STREAMS, EVENTS = 4, 2  # two streams on each of two devices
stream = st.integers(0, STREAMS - 1)
event = st.integers(0, EVENTS - 1)
STEPS = {
    "sleep": st.tuples(stream, st.integers(1, 9)),
    "wait_stream": st.tuples(stream, stream),
    "record": st.tuples(stream),
    "wait_event": st.tuples(stream, event),
    "event.wait": st.tuples(stream, event),
    "event.wait here": st.tuples(stream, event),
    "synchronize": st.tuples(stream),
    "event.synchronize": st.tuples(event),
    "device": st.tuples(stream),
    "item": st.tuples(stream),
    "to host": st.tuples(stream, st.booleans()),
    "from host": st.tuples(stream, st.booleans()),
    "between devices": st.tuples(stream),
    "time passes": st.tuples(st.integers(1, 9)),
}


class Model:
    """What is expected: the moments until which streams sleep and which events mark."""

    def __init__(self):
        self.time, self.busy, self.marks = 100.0, [0.0] * STREAMS, [0.0] * EVENTS

    def wait(self, moment):
        self.time = max(self.time, moment)

    def delay(self, stream, moment):
        if moment > self.time:
            self.busy[stream] = max(self.busy[stream], moment)

    def step(self, name, first, second=None):
        busy = self.busy[first] if name != "time passes" else 0.0
        if name == "sleep":
            self.busy[first] = max(self.time, busy) + second
        elif name == "wait_stream":
            self.delay(first, self.busy[second])
        elif name == "record":
            self.marks[first // 2] = max(self.time, busy)
        elif name in ("wait_event", "event.wait", "event.wait here"):
            self.delay(first, self.marks[second])
        elif name == "event.synchronize":
            self.wait(self.marks[first])
        elif name == "device":
            self.wait(max(self.busy[first // 2 * 2 :][:2]))
        elif name in ("synchronize", "item") or (name in ("to host", "from host") and second):
            self.wait(busy)
        elif name == "time passes":
            self.time += first


class Real:
    """The same on simulated devices: event k is recorded on device k."""

    def __init__(self, devices):
        self.streams = [torch.simgpu.Stream(devices[k // 2]) for k in range(STREAMS)]
        self.events = [torch.simgpu.Event() for _ in range(EVENTS)]
        self.tensors = [torch.ones((), device=device) for device in devices]

    def step(self, name, first, second=None):
        if name == "time passes":
            clock.current.time += first
            return
        if name == "event.synchronize":
            self.events[first].synchronize()
            return
        stream, x = self.streams[first], self.tensors[first // 2]
        other = self.tensors[1 - first // 2].device
        calls = {
            "wait_stream": lambda: stream.wait_stream(self.streams[second]),
            "record": lambda: self.events[first // 2].record(stream),
            "wait_event": lambda: stream.wait_event(self.events[second]),
            "event.wait": lambda: self.events[second].wait(stream),
            "synchronize": stream.synchronize,
            "device": lambda: torch.simgpu.synchronize(x.device),
        }
        if name in calls:
            calls[name]()
            return
        with torch.simgpu.stream(stream):
            if name == "sleep":
                streams.sleep(second)
            elif name == "event.wait here":
                self.events[second].wait()
            elif name == "item":
                x.item()
            elif name == "to host":
                x.to("cpu", non_blocking=not second)
            elif name == "from host":
                torch.ones(()).to(x.device, non_blocking=not second)
            else:
                x.to(other)


@pytest.mark.without("--async", "--races", reason="asks who waits among streams in no order")
@given(
    steps=st.lists(
        st.one_of(
            *(st.tuples(st.just(name), arguments) for name, arguments in sorted(STEPS.items()))
        ),
        min_size=12,
        max_size=40,
    ),
    asleep=st.permutations([0, 3, 5, 8]),
    pair=st.permutations(range(STREAMS)),
)
def test_wait_for_a_stream_includes_its_sleep(simulated, steps, asleep, pair):
    model, manual = Model(), StoppedClock()
    for device in simulated[:2]:
        world.device(device.index).busy_until.clear()  # of an example that failed
    with clock.use(manual):
        real = Real(simulated[:2])
        first = [("sleep", each) for each in enumerate(asleep)]
        first.append(("wait_stream", tuple(pair[:2])))
        first += [("record", (pair[2],)), ("event.wait", (pair[3], pair[2] // 2))]
        for name, arguments in [*first, *steps]:
            model.step(name, *arguments)
            real.step(name, *arguments)
            assert manual.time == model.time, name
            assert [s.query() for s in real.streams] == [b <= model.time for b in model.busy]
            assert [e.query() for e in real.events] == [m <= model.time for m in model.marks]
        for number in sorted(range(STREAMS), key=model.busy.__getitem__):
            model.step("synchronize", number)
            real.step("synchronize", number)
            assert manual.time == model.time


def test_a_clock_is_put_away_after_an_error_too():
    before = clock.current.now()
    with contextlib.suppress(KeyError), clock.use(StoppedClock()):
        assert clock.current.now() == 100.0
        raise KeyError
    assert clock.current.now() >= before
    assert clock.current.now() != 100.0


def test_an_event_keeps_its_number(simulated):
    """By which C would know it, however often it is recorded."""
    events = [torch.simgpu.Event() for _ in range(2)]
    assert [event.cuda_event for event in events] == [0, 0]
    numbers = []
    for _ in range(2):
        for event in events:
            event.record()
        numbers.append([event.cuda_event for event in events])
    assert numbers[0] == numbers[1]
    assert len({0, *numbers[0]}) == 3
