"""The laziest order runs what somebody waits for and what that needs, and nothing else.

Those that a seed draws run at least that, and nothing before what it needs; autograd's engine puts
backward passes over several streams in order.
"""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from tests.support.drawn_streams import Arrows, Calls, orderings

STREAMS = 3

streams = st.integers(0, STREAMS - 1)
launches = st.tuples(st.just("launch"), streams)
steps = st.one_of(launches, launches, *orderings(streams, st.integers(0, 1)))


class Oracle(Arrows):
    """Which launches there were, and which points have run."""

    def __init__(self):
        super().__init__(STREAMS)
        self.launched, self.done = [], set()

    def do(self, kind, first, second=None):
        if kind == "launch":
            self.launched.append(self.point(first))
            return
        super().do(kind, first, second)
        if kind.startswith("finish"):
            self.done |= self.needed(self.host)


class Program(Calls):
    def __init__(self, device):
        super().__init__([torch.simgpu.Stream(device) for _ in range(STREAMS)])
        self.aside = torch.simgpu.Stream(device)  # which waits for none of them
        self.x, self.made = torch.zeros(1, device=device), []
        torch.simgpu.synchronize(device)

    def do(self, kind, first, second=None):
        if kind == "launch":
            with torch.simgpu.stream(self.streams[first]):
                self.made.append(self.x + 1)
        else:
            super().do(kind, first, second)

    def has_run(self):
        with torch.simgpu.stream(self.aside):
            return [each.item() == 1.0 for each in self.made]


@pytest.mark.without("--races", reason="races on purpose")
@given(program=st.lists(steps, min_size=4, max_size=16))
@example(program=[("launch", 1), ("wait", 0, 1), ("finish stream", 0)])
@example(program=[("launch", 1), ("record", 1, 0), ("launch", 1), ("finish event", 0)])
@example(
    program=[
        *(("launch", 1), ("record", 1, 0), ("launch", 1)),
        *(("pass", 0, 0), ("launch", 0), ("finish stream", 0)),
    ]
)
@example(
    program=[
        *(("launch", 0), ("record", 0, 0), ("record", 1, 0)),  # of a stream without work
        *(("launch", 1), ("pass", 1, 0), ("finish stream", 1)),
    ]
)
def test_only_awaited_work_runs(simulated, program):
    oracle = Oracle()
    with simgpu.asynchronous():
        real = Program(simulated[0])
        for step in program:
            oracle.do(*step)
            real.do(*step)
            assert real.has_run() == [point in oracle.done for point in oracle.launched]


@given(
    launched=st.lists(st.tuples(streams, st.none() | streams), min_size=3, max_size=10),
    seed=st.integers(0, 2**32),
)
def test_nothing_runs_before_the_work_it_needs(simulated, launched, seed):
    """Each launch sums up what comes before it by the oracle; what has not run is NaN."""
    oracle, sums, stream = Oracle(), [], 0
    with simgpu.asynchronous(seed):
        real = Program(simulated[0])
        for stream, awaited in launched:
            if awaited is not None:
                oracle.do("wait", stream, awaited)
                real.do("wait", stream, awaited)
            oracle.do("launch", stream)
            needed = oracle.needed(oracle.launched[-1])
            before = [at for at, point in enumerate(oracle.launched) if point in needed]
            sums.append(1 + sum(sums[at] for at in before))
            with torch.simgpu.stream(real.streams[stream]):
                real.made.append(sum((real.made[at] for at in before), real.x + 1))
        oracle.do("finish stream", stream)
        real.do("finish stream", stream)
        with torch.simgpu.stream(real.aside):
            for point, made, expected in zip(oracle.launched, real.made, sums, strict=True):
                assert point not in oracle.done or made.item() == expected


@pytest.mark.without("--races", reason="races on purpose")
@given(steps=st.integers(1, 3))
def test_a_stream_that_has_not_waited_comes_before_and_after_each_step(simulated, steps):
    """Also where the host waits for the stream that takes the steps, and that for the other one."""

    def steps_seen(seed):
        x, side = torch.zeros(1).to("simgpu:0"), torch.simgpu.Stream("simgpu:0")
        with simgpu.asynchronous(seed):
            for _ in range(steps):
                x += 1
            with torch.simgpu.stream(side):
                seen = x + 0
            torch.simgpu.current_stream().wait_stream(side)
            return seen.item()

    seen = [steps_seen(seed) for seed in range(60)]
    assert set(seen) == set(range(steps + 1))
    assert seen.count(0) > len(seen) / 8  # not but by chance


@given(
    numbers=st.lists(st.integers(0, 2), min_size=2, max_size=5),
    seed=st.none() | st.integers(0, 2**16),
)
def test_gradients_are_right_on_any_streams(simulated, numbers, seed):
    """`numbers` are the streams of the operators; the caller's is the default one."""
    device = simulated[0]
    with simgpu.asynchronous(seed):
        streams = [
            torch.simgpu.default_stream(device),
            *(torch.simgpu.Stream(device) for _ in "12"),
        ]
        x = torch.tensor([1.0, 2.0, 3.0]).to(device).requires_grad_()
        y, last = x, streams[0]
        for number in numbers:
            streams[number].wait_stream(last)
            last = streams[number]
            with torch.simgpu.stream(last):
                y.record_stream(last)
                y = y * 2 + 1
        streams[0].wait_stream(last)
        y.record_stream(streams[0])
        y.square().sum().backward()
        del y
        held = []
        for stream in streams:  # each of which may get what was given back there
            with torch.simgpu.stream(stream):
                held += [torch.zeros(3, device=device) for _ in numbers]
        gradient = x.grad.tolist()
    assert len(held) == 3 * len(numbers)
    slope, value = 2.0 ** len(numbers), torch.tensor([1.0, 2.0, 3.0])
    for _ in numbers:
        value = value * 2 + 1
    assert gradient == (2 * slope * value).tolist()
