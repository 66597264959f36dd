"""Which accesses are in no order: `simgpu.races` against paths in a graph, drawn programs.

Two accesses are in order where a path of arrows leads from one to the other. Graphs that were
captured are in the order of their replays.
"""

import itertools

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from tests.support.drawn_streams import Arrows, Calls, orderings
from tests.support.training import few

HOME = (0, 0, 0, 1, 1)  # the device of each stream; 0 and 3 are the default ones
PARTS = (  # the fourth one lies between the elements of the third
    *((slice(0, 2), slice(0, 4)), (slice(1, 3), slice(0, 4))),
    *((slice(0, 3), slice(1, 2)), (slice(1, 2), slice(0, 1)), (slice(2, 3), slice(0, 4))),
)

streams = st.sampled_from((0, 1, 2, 0, 1, 3, 4))  # mostly those of one device
kinds = st.sampled_from(("write", "read"))
accesses = st.tuples(kinds, streams, st.integers(0, len(PARTS) - 1))
waits, *others = orderings(streams, st.integers(0, 1))
steps = st.one_of(
    *[accesses] * 5,
    *[waits] * 2,
    *others,
    st.tuples(st.just("finish device"), st.integers(0, 1)),
    st.tuples(st.just("copy"), streams, streams),
    st.tuples(st.just("number"), streams),
)


class Oracle(Arrows):
    def __init__(self):
        super().__init__(len(HOME))
        self.accesses = []  # point, device, bytes, whether it writes

    def access(self, point, device, part, writes):
        rows, columns = PARTS[part]
        touched = set(itertools.product(range(3)[rows], range(4)[columns]))
        races = any(
            device == other_device
            and (writes or other_writes)
            and touched & other_touched
            and other not in self.needed(point)
            for other, other_device, other_touched, other_writes in self.accesses
        )
        self.accesses.append((point, device, touched, writes))
        return races

    def do(self, kind, first, second=None):
        """Whether the step races."""
        if kind in ("write", "read"):
            return self.access(self.point(first), HOME[first], second, kind == "write")
        if kind == "finish device":
            homes = zip(self.last, HOME, strict=True)
            self.host_waits(*(point for point, home in homes if home == first))
        elif kind == "copy":
            if HOME[first] != HOME[second]:
                self.point(second, self.point(first, self.last[second]))
        elif kind == "number":
            self.host_waits(self.point(first))
        else:
            super().do(kind, first, second)
        return False


class Program(Calls):
    """The same steps on simulated devices, on one tensor of each."""

    def __init__(self, devices):
        streams = []
        for number, home in enumerate(HOME):
            is_first = home not in HOME[:number]
            make = torch.simgpu.default_stream if is_first else torch.simgpu.Stream
            streams.append(make(devices[home]))
        super().__init__(streams)
        self.tensors = [torch.zeros(3, 4, device=device) for device in devices]
        for device in devices:
            torch.simgpu.synchronize(device)

    def do(self, kind, first, second=None):
        if kind == "finish device":
            torch.simgpu.synchronize(first)
            return
        stream = self.streams[first]
        with torch.simgpu.stream(stream):
            if kind == "write":
                self.tensors[HOME[first]][PARTS[second]].fill_(1.0)
            elif kind == "read":
                self.tensors[HOME[first]][PARTS[second]].neg()
            elif kind == "copy":
                if HOME[first] != HOME[second]:
                    with torch.simgpu.stream(self.streams[second]), torch.simgpu.stream(stream):
                        torch.ones(1, device=stream.device).to(self.streams[second].device)
            elif kind == "number":
                torch.ones(1, device=stream.device).item()
            else:
                super().do(kind, first, second)


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
            if oracle.do(*step) and expected_at is None:
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


@pytest.mark.without("--races", reason="races on purpose")
@few
@given(waits=st.booleans(), warmed_up=st.booleans(), branches=st.booleans(), side=st.booleans())
@example(waits=True, warmed_up=True, branches=True, side=True)
@example(waits=False, warmed_up=False, branches=False, side=True)
@example(waits=True, warmed_up=False, branches=False, side=False)
def test_a_graph_is_in_the_order_of_its_replays(waits, warmed_up, branches, side):
    kind = torch.cuda
    with simgpu.as_cuda(1), simgpu.races() as found:
        x = torch.ones(3, device="cuda")
        main, other = kind.current_stream(), kind.Stream()
        if warmed_up:
            other.wait_stream(main)
            with kind.stream(other):
                x * 2
            main.wait_stream(other)
        graph = kind.CUDAGraph()
        with kind.graph(graph):
            capturing = kind.current_stream()
            if branches:
                branch = kind.Stream()
                branch.wait_stream(kind.current_stream())
                with kind.stream(branch):
                    x * 3
                kind.current_stream().wait_stream(branch)
            y = x * 2
        x.fill_(5)
        with kind.stream(other if side else main):
            if side and waits:
                other.wait_stream(main)
            graph.replay()
        if side and waits:
            main.wait_stream(other)
        assert y.tolist() == [10] * 3 or (side and not waits)
        graph.replay()
        del y  # its memory stays the graph's
        for stream in (main, capturing):
            with kind.stream(stream):
                torch.ones(1, device="cuda")
    assert bool(found) == (side and not waits)
    assert all(race.first.op.startswith("fill_") for race in found[:1])


@pytest.mark.without("--races", reason="races on purpose")
@few
@given(waits=st.booleans(), same=st.booleans())
@example(waits=False, same=True)
def test_a_graph_gets_no_memory_that_a_stream_gave_back(waits, same):
    """A graph allocates from memory of its own, so the stream's next allocation may get that."""
    kind = torch.cuda
    with simgpu.as_cuda(1), simgpu.races() as found:
        own, side = kind.Stream(), kind.Stream()
        with kind.stream(own):
            x, y = torch.ones(3, device="cuda"), torch.ones(3, device="cuda")
        side.wait_stream(own)
        with kind.stream(side):
            x.neg()
        del x
        kind.memory_allocated()  # looks at what is given back
        with kind.stream(own if same else kind.Stream()):
            graph = kind.CUDAGraph()
            graph.capture_begin()
            y.neg()
            graph.capture_end()
        assert found == []
        if waits:
            own.wait_stream(side)
        with kind.stream(own):
            torch.ones(1, device="cuda")
    assert [race.kind for race in found] == ["free"] * (not waits)


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.parametrize("by_event", [False, True])
@pytest.mark.parametrize("captured", [False, True])
def test_a_captured_wait_orders_nothing_else(captured, by_event):
    kind = torch.cuda
    with simgpu.as_cuda(1), simgpu.races() as found:
        x, (one, other) = torch.ones(3, device="cuda"), (kind.Stream(), kind.Stream())
        kind.synchronize()
        graph = kind.CUDAGraph()
        with kind.stream(one):
            x.fill_(2)
            if captured:
                graph.capture_begin()
                torch.ones(2, device="cuda").mul_(2)
            if by_event:
                one.record_event().wait(other)
            else:
                other.wait_stream(one)
            if captured:
                one.wait_stream(other)
                graph.capture_end()
        with kind.stream(other):
            x + 1
        kind.synchronize()
    assert len(found) == captured


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.parametrize("waits", [False, True])
def test_pinned_memory_that_a_graph_writes_is_there_after_its_replay(waits):
    """Copied without an operator of PyTorch's that modes would see."""
    with simgpu.as_cuda(1), simgpu.races() as found:
        x, target = torch.ones(3, device="cuda"), torch.zeros(3).pin_memory()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            target.copy_(x, non_blocking=True)
        for _ in range(2):
            graph.replay()
            if waits:
                torch.cuda.synchronize()
            target.tolist()
    assert bool(found) != waits, found
