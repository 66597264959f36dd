"""Pools of streams, and blocks: `with stream:`, and `with torch.cuda.stream(stream):`.

With PyTorch's own on CUDA, what is put back by `with stream:` is kept in the stream, once: these
tests do not hold there.
"""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.cuda.comm
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import dataparallel
import simgpu
from dataparallel import comm
from simgpu._core import clock, streams, world
from tests.support import strategies
from tests.support.instruments import StoppedClock
from tests.support.observe import values
from tests.support.oracle import numbers
from tests.support.threads import in_thread
from tests.support.training import few

# Who does it, what is entered (None: the innermost block ends, or one that has not begun), whether
# it ends by an error, and whether anybody looks at what is current then.
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.none() | st.integers(0, 5), st.booleans(), st.booleans()),
    max_size=12,
)
INDICES = range(2)  # of the devices whose streams are looked at


def current():
    """The calling thread's device, and its stream of each with what only that object knows."""
    streams = [torch.simgpu.current_stream(i) for i in INDICES]
    return torch.simgpu.current_device(), [(each, each.priority) for each in streams]


@given(steps=STEPS)
def test_each_beginning_of_a_block_is_put_back_in_its_thread(simulated, steps):
    """However deep one block or stream is entered, and whoever else is in it meanwhile."""
    streams = [torch.simgpu.Stream(index, priority=-1) for index in (0, 1, 1)]
    blocks = [*streams, *map(torch.simgpu.stream, streams)]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        pools = one, other
        other.submit(torch.simgpu.set_device, 1).result()
        first = [(torch.simgpu.default_stream(index), 0) for index in INDICES]
        seen = [[(number, first)] for number in range(2)]  # before each open block
        entered = [[] for _ in pools]
        ends = [(who, None, False, True) for who in (0, 1) for _ in (None, *steps)]
        for who, which, fails, looked in [*steps, *ends]:
            if which is not None:
                pools[who].submit(blocks[which].__enter__).result()
                stream = streams[which % 3]
                mine = [*seen[who][-1][1]]
                mine[stream.device_index] = stream, stream.priority
                seen[who].append((stream.device_index, mine))
                entered[who].append(blocks[which])
            else:
                block = entered[who].pop() if entered[who] else blocks[0]
                error = (KeyError, KeyError(), None) if fails else (None, None, None)
                ended = pools[who].submit(block.__exit__, *error)
                assert not ended.result()
                if len(seen[who]) > 1:
                    seen[who].pop()
            for pool, states in zip(pools, seen, strict=True):
                if looked:
                    assert pool.submit(current).result() == states[-1]


def test_stream_of_the_cpu_is_refused_and_changes_nothing(simulated):
    before = current()
    with pytest.raises(ValueError, match="simgpu"), torch.simgpu.stream(torch.Stream("cpu")):
        pass
    assert current() == before


def test_a_block_that_ends_in_another_thread_changes_nothing_there(simulated):
    """As that of a generator does, which is closed by somebody else."""
    block = torch.simgpu.stream(torch.simgpu.Stream(1))
    in_thread(block.__enter__)
    before = current()
    block.__exit__(None, None, None)
    assert current() == before


def test_a_stream_of_a_device_out_of_reach_changes_nothing():
    with simgpu.devices(2):
        stream = torch.simgpu.Stream(1)
        before = current()
        with world.limited_to(1), pytest.raises(RuntimeError):
            stream.__enter__()
        assert current() == before


POOL = 32  # streams of each priority, as PyTorch has on CUDA


@given(index=st.integers(0, 1), priority=st.integers(-6, 3), more=st.integers(0, 40))
def test_the_33rd_stream_is_the_first_one_again(simulated, index, priority, more):
    count = POOL + more
    streams = [torch.simgpu.Stream(index, priority) for _ in range(count)]
    assert len({stream.stream_id for stream in streams}) == POOL
    assert all(streams[k] == streams[k + POOL] for k in range(more))
    assert {stream.priority for stream in streams} == {max(-3, min(priority, 0))}
    assert {stream.device_index for stream in streams} == {index}
    assert torch.simgpu.Stream.priority_range() == (0, -3)


@given(priorities=st.lists(st.integers(-3, 0), min_size=1, max_size=9))
def test_each_priority_and_device_has_streams_of_its_own(simulated, priorities):
    """Made by either class; the numbers are those of PyTorch (c10/cuda/CUDAStream.cpp)."""
    known = {}
    for priority in priorities:
        for kind in (torch.simgpu.Stream, torch.Stream):
            stream = kind(device=simulated[0], priority=priority)
            assert stream.stream_id % 32 == 3 - 2 * priority
            known.setdefault(stream.stream_id, set()).add(priority)
    assert all(len(found) == 1 for found in known.values())
    other = torch.simgpu.Stream(1)
    assert {other.cuda_stream, other.native_handle}.isdisjoint(
        torch.simgpu.Stream(0).cuda_stream for _ in range(POOL)
    )


def test_default_streams_have_no_priority(simulated):
    for device in simulated:
        stream = torch.simgpu.default_stream(device)
        assert (stream.stream_id, stream.priority, stream.cuda_stream) == (0, 0, 0)


AWAKE, ASLEEP = 100.0, 200.0


class Asleep(dict):
    """Until when the streams of a device are busy: all of them, those in the background too."""

    def __bool__(self):
        return True

    def get(self, stream, default=None):
        return ASLEEP


class Given:
    """What the calls take, made while nothing sleeps."""

    def __init__(self, devices):
        x = values((12, 3), "float32")
        self.devices, self.first, self.x = devices, devices[0], x
        self.packed = pack_sequence([torch.ones(length) for length in (4, 3, 2, 1)])
        self.parts = [x.to(device) for device in devices]
        self.large = [part.repeat(8000, 1) for part in self.parts]
        self.outs = [part.clone() for part in self.parts]
        self.chunks = [part[: 12 // len(devices)].clone() for part in self.parts]
        self.sparse = self.parts[0].to_sparse()
        self.parallel = dataparallel.DataParallel(nn.Linear(3, 3).to(self.first), devices)


# Each call, and whether it has a result on the host.
CALLS = {
    "a number for all": (lambda it: dataparallel.scatter(torch.tensor(1.0), it.devices), False),
    "chunks": (lambda it: dataparallel.scatter(it.x, it.devices), False),
    "chunks of sequences": (lambda it: dataparallel.scatter(it.packed, it.devices), False),
    "comm.scatter": (lambda it: comm.scatter(it.x, it.devices), False),
    "comm.scatter into": (lambda it: comm.scatter(it.x, out=it.chunks), False),
    "PyTorch's scatter": (
        lambda it: torch.cuda.comm.scatter(it.x, numbers(it.devices)),
        False,
    ),
    "comm.broadcast": (lambda it: comm.broadcast(it.x, it.devices), False),
    "comm.broadcast into": (lambda it: comm.broadcast(it.x, out=it.outs), False),
    "to other devices": (lambda it: comm.broadcast(it.parts[0], it.devices), False),
    "a sum with parts of the host": (
        lambda it: comm.reduce_add([it.parts[0], it.x, it.x], it.first),
        False,
    ),
    "joined on a device": (lambda it: dataparallel.gather(it.parts, it.first), False),
    "joined on the host": (lambda it: dataparallel.gather(it.parts, "cpu"), True),
    "joined of the host": (lambda it: dataparallel.gather([it.x, it.x], it.first), False),
    "joined large of the host": (
        lambda it: dataparallel.gather([it.x.repeat(8000, 1)] * 2, it.first),
        False,
    ),
    "joined large on a device": (lambda it: dataparallel.gather(it.large, it.first), False),
    "joined large on the host": (lambda it: dataparallel.gather(it.large, "cpu"), True),
    "sparse on the host": (lambda it: it.x.to_sparse().copy_(it.sparse), True),
    "a module": (lambda it: it.parallel(it.x), False),
    "a step": (lambda it: it.parallel(it.x).sum().backward(), False),
}


@pytest.mark.parametrize("name", CALLS)
@few
@given(data=st.data())
def test_only_a_result_on_the_host_is_awaited(simulated, name, data):
    call, awaited = CALLS[name]
    targets = data.draw(strategies.device_lists(simulated, min_size=2, max_size=3))
    given = Given(targets)
    with pytest.MonkeyPatch.context() as patch, clock.use(StoppedClock()):
        for target in targets:
            patch.setattr(world.device(target.index), "busy_until", Asleep())
        call(given)
        assert clock.current.now() == (ASLEEP if awaited else AWAKE)


STREAMS, EVENTS = 4, 2  # two streams on each of two devices
stream = st.integers(0, STREAMS - 1)
event = st.integers(0, EVENTS - 1)
SLEEPS = {
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
            *(st.tuples(st.just(name), arguments) for name, arguments in sorted(SLEEPS.items()))
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
