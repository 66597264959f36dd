"""Memory that was freed while streams had yet to read it: which of them find it overwritten."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu

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
