"""Drawn programs of streams and events: the calls of each step, and which work comes first.

`Arrows` is an oracle without clocks: it draws an arrow from each point of a program to those after
it. By the rules of CUDA a stream keeps its order, and an event means the work before its last
record. What is asked for after the host has waited comes after what it has waited for.
"""

import torch
from hypothesis import strategies as st


def orderings(streams, events):
    """Strategies of the steps that put streams in order; the arguments draw their numbers."""
    return [
        st.tuples(st.just("wait"), streams, streams),
        st.tuples(st.just("record"), streams, events),
        st.tuples(st.just("pass"), streams, events),
        st.tuples(st.just("finish stream"), streams),
        st.tuples(st.just("finish event"), events),
    ]


class Arrows:
    """Numbered points, and for each those that an arrow leads from."""

    def __init__(self, streams):
        self.before, self.last, self.events, self.host = [], [None] * streams, {}, None

    def _new(self, *after):
        self.before.append({*after, self.host} - {None})
        return len(self.before) - 1

    def point(self, stream, *after):
        """A new point of a stream; returns its number."""
        self.last[stream] = self._new(*after, self.last[stream])
        return self.last[stream]

    def host_waits(self, *awaited):
        self.host = self._new(*awaited)

    def needed(self, point):
        """All points before one."""
        found, todo = set(), [point]
        while todo:
            new = self.before[todo.pop()] - found
            found |= new
            todo += new
        return found

    def do(self, kind, first, second=None):
        if kind == "wait":
            self.point(first, self.last[second])
        elif kind == "record":
            self.events[second] = self.last[first]
        elif kind == "pass":
            self.point(first, self.events.get(second))
        elif kind == "finish stream":
            self.host_waits(self.last[first])
        else:
            self.host_waits(self.events.get(first))


class Calls:
    """The same steps on simulated devices; an event of a device is recorded again and again."""

    def __init__(self, streams):
        self.streams, self.events, self.of_devices = streams, {}, {}

    def do(self, kind, first, second=None):
        event = self.events.get(first if second is None else second) or torch.simgpu.Event()
        if kind == "finish event":
            event.synchronize()
            return
        stream = self.streams[first]
        if kind == "wait":
            stream.wait_stream(self.streams[second])
        elif kind == "record":
            event = self.of_devices.setdefault((second, stream.device), torch.simgpu.Event())
            self.events[second] = event
            event.record(stream)
        elif kind == "pass":
            stream.wait_event(event)
        else:
            stream.synchronize()
