"""Which accesses are in no order: `simgpu.races` against paths in a graph, drawn programs.

The oracle knows nothing of clocks: it draws an arrow for everything that comes before something
else, and two accesses are in order where a path leads from one to the other.
"""

import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu

HOME = (0, 0, 0, 1, 1)  # the device of each stream; 0 and 3 are the default ones
STREAMS = len(HOME)
PARTS = (  # the fourth one lies between the elements of the third
    *((slice(0, 2), slice(0, 4)), (slice(1, 3), slice(0, 4))),
    *((slice(0, 3), slice(1, 2)), (slice(1, 2), slice(0, 1)), (slice(2, 3), slice(0, 4))),
)

streams = st.sampled_from((0, 1, 2, 0, 1, 3, 4))  # mostly those of one device
accesses = st.tuples(st.sampled_from(("write", "read")), streams, st.integers(0, len(PARTS) - 1))
steps = st.one_of(
    *[accesses] * 5,
    *[st.tuples(st.just("wait"), streams, streams)] * 2,
    st.tuples(st.just("record"), streams, st.integers(0, 1)),
    st.tuples(st.just("pass"), streams, st.integers(0, 1)),
    st.tuples(st.just("finish stream"), streams),
    st.tuples(st.just("finish event"), st.integers(0, 1)),
    st.tuples(st.just("finish device"), st.integers(0, 1)),
    st.tuples(st.just("copy"), streams, streams),
    st.tuples(st.just("number"), streams),
)


class Oracle:
    """Arrows between numbered points of a program: its work, and its waits."""

    def __init__(self):
        self.before = []  # of each point, those that an arrow leads from
        self.last = [None] * STREAMS
        self.events = [None, None]
        self.host = None
        self.accesses = []  # point, device, bytes, whether it writes

    def point(self, stream, *after):
        number = len(self.before)
        self.before.append({p for p in (*after, self.last[stream], self.host) if p is not None})
        self.last[stream] = number
        return number

    def host_point(self, *after):
        number = len(self.before)
        self.before.append({p for p in (*after, self.host) if p is not None})
        self.host = number

    def comes_before(self, early, late):
        seen, todo = set(), [late]
        while todo:
            for point in self.before[todo.pop()] - seen:
                seen.add(point)
                todo.append(point)
        return early in seen

    def access(self, point, device, part, writes):
        rows, columns = PARTS[part]
        touched = set(itertools.product(range(3)[rows], range(4)[columns]))
        races = any(
            device == other_device
            and (writes or other_writes)
            and touched & other_touched
            and not self.comes_before(other, point)
            for other, other_device, other_touched, other_writes in self.accesses
        )
        self.accesses.append((point, device, touched, writes))
        return races


class Program:
    """The same steps on simulated devices, on one tensor of each."""

    def __init__(self, devices):
        self.devices = devices
        self.tensors = [torch.zeros(3, 4, device=device) for device in devices]
        self.streams = [
            stream
            for device in devices
            for stream in (
                torch.simgpu.default_stream(device),
                *(torch.simgpu.Stream(device) for _ in range(HOME.count(device.index) - 1)),
            )
        ]
        self.events = [None, None]
        self.made = {}  # each number's event of each device, which is recorded again and again
        for device in devices:
            torch.simgpu.synchronize(device)

    def do(self, kind, *what):
        if kind in ("finish stream", "finish event", "finish device"):
            awaited = {
                "finish stream": lambda at: self.streams[at],
                "finish event": lambda at: self.events[at],
                "finish device": lambda at: torch.simgpu.current_stream(self.devices[at]),
            }[kind](*what)
            if kind == "finish device":
                torch.simgpu.synchronize(self.devices[what[0]])
            elif awaited is not None:
                awaited.synchronize()
            return
        stream = self.streams[what[0]]
        tensor = self.tensors[HOME[what[0]]]
        with torch.simgpu.stream(stream):
            if kind == "write":
                tensor[PARTS[what[1]]].fill_(1.0)
            elif kind == "read":
                tensor[PARTS[what[1]]].neg()
            elif kind == "wait":
                stream.wait_stream(self.streams[what[1]])
            elif kind == "record":
                own = (what[1], stream.device)
                self.events[what[1]] = self.made.setdefault(own, torch.simgpu.Event())
                self.events[what[1]].record(stream)
            elif kind == "pass" and self.events[what[1]] is not None:
                stream.wait_event(self.events[what[1]])
            elif kind == "copy" and HOME[what[0]] != HOME[what[1]]:
                with torch.simgpu.stream(self.streams[what[1]]), torch.simgpu.stream(stream):
                    torch.ones(1, device=stream.device).to(self.streams[what[1]].device)
            elif kind == "number":
                torch.ones(1, device=stream.device).item()


def asked(oracle, kind, *what):
    """Do a step in the graph; whether it races."""
    last, host = oracle.last, oracle.host_point
    if kind in ("write", "read"):
        return oracle.access(oracle.point(what[0]), HOME[what[0]], what[1], kind == "write")
    if kind == "wait":
        oracle.point(what[0], last[what[1]])
    elif kind == "record":
        oracle.events[what[1]] = oracle.point(what[0])
    elif kind == "pass" and oracle.events[what[1]] is not None:
        oracle.point(what[0], oracle.events[what[1]])
    elif kind == "finish stream":
        host(last[what[0]])
    elif kind == "finish event":
        host(oracle.events[what[0]])
    elif kind == "finish device":
        host(*(point for point, home in zip(last, HOME, strict=True) if home == what[0]))
    elif kind == "copy" and HOME[what[0]] != HOME[what[1]]:
        point = oracle.point(what[0], last[what[1]])
        oracle.point(what[1], point)
    elif kind == "number":
        host(oracle.point(what[0]))
    return False


@pytest.mark.without("--races", reason="races on purpose")
@given(program=st.lists(steps, min_size=4, max_size=14), known=st.booleans())
@example(program=[("write", 1, 0), ("finish device", 0), ("write", 0, 0)], known=True)
@example(program=[("read", 0, 0), ("write", 1, 0)], known=True)
@example(program=[("read", 0, 0), ("read", 1, 0), ("write", 1, 0)], known=True)
@example(program=[("write", 0, 0), ("wait", 1, 0), ("read", 1, 0), ("read", 2, 0)], known=True)
@example(program=[("write", 0, 0), ("copy", 0, 3), ("wait", 1, 3), ("read", 1, 0)], known=True)
@example(program=[("write", 0, 0), ("number", 0), ("read", 1, 0)], known=True)
@example(program=[("write", 0, 3), ("wait", 1, 0), ("write", 1, 2), ("write", 2, 3)], known=True)
@example(
    program=[
        *(("write", 0, 0), ("record", 0, 0), ("record", 1, 0)),
        *(("pass", 2, 0), ("write", 2, 0)),
    ],
    known=True,
)
@example(program=[("write", 0, 3), ("write", 0, 0), ("write", 1, 1)], known=False)
@example(program=[("write", 0, 1), ("wait", 1, 0), ("write", 1, 0), ("write", 2, 4)], known=True)
def test_a_step_is_reported_if_no_path_leads_to_it(simulated, program, known):
    """Memory that was allocated before the search (not `known`) is searched, too."""
    oracle, found_at, expected_at = Oracle(), None, None
    before = None if known else Program(simulated[:2])
    with simgpu.races() as found:
        real = before or Program(simulated[:2])
        for at, step in enumerate(program):
            real.do(*step)
            if asked(oracle, *step) and expected_at is None:
                expected_at = at
            if found and found_at is None:
                found_at = at
    assert found_at == expected_at


@pytest.mark.without("--races", reason="races on purpose")
@given(
    users=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=3),
    waits=st.sets(st.integers(1, 2), max_size=1),
    finishes=st.sets(st.integers(1, 2), max_size=1),
    late=st.booleans(),
    others=st.booleans(),
)
@example(users=[(1, True)], waits=set(), finishes=set(), late=False, others=False)
@example(users=[(1, False)], waits={1}, finishes=set(), late=True, others=False)
@example(users=[(1, False)], waits=set(), finishes=set(), late=False, others=True)
def test_memory_is_used_again_once_all_its_readers_are_known_to_be(
    simulated, users, waits, finishes, late, others
):
    """`users` are streams that read it, and whether that is recorded on the tensor.

    Its stream may wait for them until its next allocation, also after the memory was given back
    (`late`); what another stream allocates (`others`) is other memory.
    """
    device = simulated[0]
    made = [torch.simgpu.default_stream(device), *(torch.simgpu.Stream(device) for _ in "12")]
    with simgpu.races() as found:
        x = torch.ones(5, device=device)
        for number, recorded in users:
            made[number].wait_stream(made[0])
            with torch.simgpu.stream(made[number]):
                x.neg()
            if recorded:
                x.record_stream(made[number])
        if late:
            del x
            torch.simgpu.memory_allocated(device)  # only now the ledger looks
        for number in waits:
            made[0].wait_stream(made[number])
        for number in finishes:
            made[number].synchronize()
        if not late:
            del x
        assert found == []
        with torch.simgpu.stream(made[1 if others else 0]):
            torch.ones(1, device=device)
    recorded = {number for number, is_recorded in users if is_recorded}
    open_ = {number for number, _ in users} - recorded - waits - finishes - {0}
    expected = set() if others else {made[number].stream_id for number in open_}
    # All read at one line, and equal lines are told of once.
    assert {race.first.queue[1] for race in found} <= expected
    assert len(found) == min(1, len(expected))
    assert all(race.kind == "free" for race in found)
    assert all((race.second.op, race.second.queue[1]) == ("an allocation", 0) for race in found)
