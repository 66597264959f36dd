"""What the queues keep and report, when work, devices or blocks end, and after Ctrl-C.

Memory that was given back is overwritten for late readers.
"""

import contextlib
import gc
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from simgpu._explore.asynchronous.queues import Work
from simgpu.errors import DeviceLostError
from tests.support.interrupts import Interrupt, Interrupter


@given(pin=st.booleans(), backward=st.booleans())
def test_launches_during_the_start_of_a_mode_run_without_it(simulated, pin, backward):
    """A search for races begins to watch the host in the middle of a call of autograd's."""
    with simgpu.asynchronous(), simgpu.races() as found:
        net = torch.nn.Linear(4, 4).to(simulated[0])
        x = torch.ones(3, 4, device=simulated[0], requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin, "simgpu"):
            loss = net(x).square().sum()
        if backward:
            loss.backward()
            assert x.grad.isfinite().all().item()
        assert loss.item() >= 0
    assert found == []


@given(count=st.integers(1, 5))
def test_host_results_are_kept_only_by_the_program(simulated, count):
    x = torch.ones(3, device=simulated[0])
    with simgpu.asynchronous() as queued:
        for _ in range(count):
            x.to("cpu", non_blocking=True)
        torch.simgpu.synchronize()
        assert not [ref for _, ref in queued._memory._coming.values() if ref() is not None]


# What meta kernels foretell is remembered for each shape: a new one is asked for each time.
lengths = itertools.count(1)


@given(batch=st.integers(1, 3), held=st.integers(1, 1000))
def test_unpredictable_results_are_not_cached(simulated, batch, held):
    """That a call has to run at once is remembered; its tensors and its caller's are not."""

    def call():
        callers = torch.ones(held, device=simulated[0])
        torch.geqrf(torch.ones(batch, next(lengths), 1, device=simulated[0]))
        return callers.shape

    before = torch.simgpu.memory_allocated(0)
    with simgpu.asynchronous():
        call()
        assert torch.simgpu.memory_allocated(0) == before


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
def test_an_event_keeps_no_finished_work(simulated, rounds):
    """Each kernel comes after the one before: once it has run, it is forgotten."""
    assert work_left(simulated[0], rounds) == work_left(simulated[0], 1)


@given(loses=st.tuples(*[st.booleans()] * 3))
@example(loses=(True, False, False))
@example(loses=(False, True, False))
def test_error_is_raised_by_the_block_that_ends_its_devices(loses):
    """Devices end before a block within another, in it and after it; each loses one or none."""
    reported = []

    @contextlib.contextmanager
    def block(name):
        try:
            with simgpu.asynchronous():
                yield
        except DeviceLostError:
            reported.append(name)

    def devices(is_lost):
        with simgpu.devices(1):
            x, index = torch.ones(3).to("simgpu:0"), torch.tensor([7]).to("simgpu:0")
            x.index_select(0, index if is_lost else index - 7)

    with block("outer"):
        devices(loses[0])
        with block("inner"):
            devices(loses[1])
        devices(loses[2])
    assert reported == ["inner"] * loses[1] + ["outer"] * (loses[0] or loses[2])


def state():
    """Which dispatch keys are active, and whether gradients are recorded."""
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return [each.raw_repr() for each in keys], torch.is_grad_enabled()


@given(seed=st.none() | st.integers(0, 9), parts=st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_an_interrupt_leaves_no_state_of_a_kernel_behind(simulated, seed, parts):
    def run():
        with simgpu.asynchronous(seed):
            x, before = torch.ones(2, 2, device=simulated[0]), state()

            def step():
                for _ in range(2):
                    (x @ x + 1).sum().item()

            with Interrupter(0) as whole:
                step()
            for part in parts:
                with contextlib.suppress(Interrupt), Interrupter(1 + int(part * whole.passed)):
                    step()
                assert state() == before

    with ThreadPoolExecutor(1) as thread:  # which takes along what is left behind
        thread.submit(run).result()


READERS = 3  # streams beside the one that the memory belongs to

readers = st.integers(0, READERS - 1)
# How a stream waits for another one: also by one that waits for it, and by events.
ways = st.sampled_from(["stream", "another stream", "event", "timed event", "event of another"])


def wait(own, side, between, way):
    """Let `own` wait for what `side` has to do, perhaps by the stream `between`."""
    if way == "stream":
        own.wait_stream(side)
    elif way == "another stream":
        between.wait_stream(side)
        own.wait_stream(between)
    elif way == "event of another":
        between.wait_event(side.record_event())
        own.wait_event(between.record_event())
    else:
        event = torch.simgpu.Event(enable_timing=way == "timed event")
        event.record(side)
        own.wait_event(event)


class Oracle:
    """What an allocation may get, by the rules of CUDA's caching allocator.

    Memory is handed out again by its stream's next allocation after the work is over that the
    recorded streams had when it was given back. It is overwritten once the stream has come to that.
    """

    def __init__(self, reads, recorded):
        self.readings = [stream for stream, count in reads for _ in range(count)]
        self.unread = set(self.readings)
        self.kept_for = recorded & self.unread
        self.waited_for = set()  # by the stream that the memory belongs to, before it is handed out
        self.is_handed_out, self.spoilt = False, set()

    def do(self, kind, stream=None, way=None):
        if kind == "allocate" and not self.kept_for:
            self.is_handed_out = True
        elif kind == "wait" and not self.is_handed_out:
            self.waited_for |= {stream} & self.unread
        elif kind == "finish":
            for each in (self.unread, self.kept_for, self.waited_for):
                each.discard(stream)
        if self.is_handed_out and not self.waited_for:
            self.spoilt |= self.unread


ALLOCATE = ("allocate",)


def case(reads, *steps, recorded=(), early=(), index=0, older=False):
    drawn = {"reads": reads, "steps": [*steps], "recorded": {*recorded}, "early": {*early}}
    return {**drawn, "index": index, "older": older}


@pytest.mark.without("--races", reason="races on purpose")
@given(
    index=st.integers(0, 7),
    older=st.booleans(),
    reads=st.lists(
        st.tuples(readers, st.sampled_from((1, 1, 2, 9))), min_size=1, max_size=READERS + 1
    ),
    recorded=st.sets(readers, max_size=2),
    early=st.sets(readers, max_size=1),
    steps=st.lists(
        st.just(ALLOCATE)
        | st.tuples(st.just("wait"), readers, ways)
        | st.tuples(st.just("finish"), readers),
        max_size=6,
    ),
)
@example(**case([(0, 1), (1, 1)], ALLOCATE, ("finish", 0), ALLOCATE, recorded={0}))
@example(**case([(0, 9), (1, 1)], ALLOCATE, early={1}))
@example(**case([(0, 1), (1, 1)], ("wait", 1, "stream"), ALLOCATE, ("finish", 1)))
@example(**case([(0, 1), (1, 1)], ("wait", 0, "stream"), ALLOCATE, ("wait", 1, "stream")))
@example(**case([(0, 1), (1, 1)], ("wait", 1, "another stream"), ALLOCATE, ("finish", 1)))
@example(**case([(0, 1), (1, 1)], ("wait", 1, "timed event"), ALLOCATE, ("finish", 1)))
@example(**case([(0, 1)], ALLOCATE, index=1, older=True))
def test_freed_memory_is_overwritten_for_late_readers(
    simulated, index, older, reads, recorded, early, steps
):
    """Streams read it, some of them are finished, and then it is given back.

    Memory that is older than the asynchronous execution belongs to its device's default stream.
    """
    oracle = Oracle(reads, recorded)
    device = simulated[index]
    x = torch.ones(4, device=device) if older else None
    with simgpu.asynchronous(), torch.simgpu.device(device):
        own = torch.simgpu.current_stream()
        sides = [torch.simgpu.Stream() for _ in range(READERS)]
        x, made, kept = torch.ones(4, device=device) if x is None else x, [], []
        own.synchronize()
        for stream in oracle.readings:
            with torch.simgpu.stream(sides[stream]):
                made.append(x * 2)
        for stream in recorded:
            x.record_stream(sides[stream])
        for stream in early:
            sides[stream].synchronize()
            oracle.do("finish", stream)
        del x
        torch.simgpu.memory_allocated()  # looks at what is given back
        for step in steps:
            oracle.do(*step)
            if step[0] == "allocate":
                kept.append(torch.empty(4, device=device))  # which queues nothing
            elif step[0] == "wait":
                wait(own, sides[step[1]], torch.simgpu.Stream(), step[2])
            else:
                sides[step[1]].synchronize()
        for number, side in enumerate(sides):
            side.synchronize()
            oracle.do("finish", number)
        found = [each.tolist() == [2.0] * 4 for each in made]
    assert found == [stream not in oracle.spoilt for stream in oracle.readings]
