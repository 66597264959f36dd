"""Programs of kernels, copies and waits, and what they take, worked out step by step.

A test under a clock runs a program on simulated devices, and `by_hand` says what has to come out:
the rules of CUDA in a few lines, which share nothing with the code that is tested.
"""

from collections import defaultdict

import torch
from hypothesis import strategies as st

import simgpu

DEVICES, STREAMS, EVENTS = 2, 2, 2
HOST_COST, GAP = 2**-21, 2**-19  # the host is ahead of the devices, mostly
LINK, UP = (2**30, 2**-17), (2**28, 2**-16)  # bandwidth and latency: between devices, from the host
FASTER = 4
BYTES_PER_SECOND = 1_555_000_000_000  # of an A100's memory

devices = st.integers(0, DEVICES - 1)
streams = st.integers(0, STREAMS - 1)
sizes = st.sampled_from([2**10, 2**14, 2**20])
kernels = st.tuples(st.just("kernel"), devices, streams, sizes)
steps = st.one_of(
    st.tuples(st.just("copy"), devices, streams, sizes, devices, streams),
    st.tuples(st.just("upload"), devices, streams, sizes),
    st.tuples(st.just("download"), devices, streams, sizes),
    st.tuples(st.just("wait_stream"), devices, streams, devices, streams),
    st.tuples(st.just("record"), devices, streams, st.integers(0, EVENTS - 1)),
    st.tuples(st.just("wait_event"), devices, streams, devices, st.integers(0, EVENTS - 1)),
    st.tuples(st.just("synchronize_event"), devices, st.integers(0, EVENTS - 1)),
    st.tuples(st.just("synchronize_stream"), devices, streams),
    st.tuples(st.just("synchronize"), devices),
)
programs = st.lists(kernels | steps | steps, min_size=8, max_size=20)


def links(faster=1):
    """Every device has one link to a switch, where all of them meet, and one to the host."""
    ports = [(d, "switch", LINK[0] * faster, LINK[1]) for d in range(8)]
    return ports + [(d, "host", UP[0] * faster, UP[1]) for d in range(8)]


def run(program, faster=1, after_each=lambda estimate: None):
    """Run a program under a clock; returns the estimate and the events by (device, number)."""
    names = [torch.device("simgpu", d) for d in range(DEVICES)]
    queues = {
        (d, s): torch.simgpu.Stream(name) for d, name in enumerate(names) for s in range(STREAMS)
    }
    memory = {size: torch.empty(size // 4) for size in (2**10, 2**14, 2**20)}
    tensors = {(d, n): t.to(name) for d, name in enumerate(names) for n, t in memory.items()}
    events = {(d, e): torch.simgpu.Event(True) for d in range(DEVICES) for e in range(EVENTS)}
    settings = {"host_cost": HOST_COST, "launch_gap": GAP}
    with simgpu.clock("A100", links(faster), **settings) as estimate:
        for what, *about in program:
            _do(what, about, names, queues, tensors, memory, events)
            after_each(estimate)
    return estimate, events, queues


def _do(what, about, names, queues, tensors, memory, events):
    device = about[0]
    if what in ("kernel", "copy", "upload", "download"):
        queue, size = queues[device, about[1]], about[2]
        with torch.simgpu.stream(queue):
            if what == "kernel":
                tensors[device, size].neg_()
            elif what == "upload":
                tensors[device, size].copy_(memory[size])
            elif what == "download":
                memory[size].copy_(tensors[device, size])
            elif about[3] != device:
                with torch.simgpu.stream(queues[about[3], about[4]]):
                    tensors[about[3], size].copy_(tensors[device, size])
    elif what == "wait_stream":
        queues[device, about[1]].wait_stream(queues[about[2], about[3]])
    elif what == "record":
        events[device, about[2]].record(queues[device, about[1]])
    elif what == "wait_event":
        queues[device, about[1]].wait_event(events[about[2], about[3]])
    elif what == "synchronize_event":
        events[device, about[1]].synchronize()
    elif what == "synchronize_stream":
        queues[device, about[1]].synchronize()
    else:
        torch.simgpu.synchronize(names[device])


def by_hand(program):
    """What a program takes: the host's time, when events are passed, the spans of each stream."""
    host, free, links_free = 0.0, defaultdict(float), defaultdict(float)
    passed, spans = {}, defaultdict(list)

    def ran(on, begin, seconds):
        for queue in on:
            free[queue] = begin + seconds
            spans[queue].append((begin, begin + seconds))
        return begin + seconds

    for what, device, *about in program:
        if what == "kernel":
            host += HOST_COST
            queue = device, about[0]
            seconds = GAP + 2 * about[1] / BYTES_PER_SECOND
            ran([queue], max(host, free[queue]), seconds)
        elif what == "copy" and about[2] != device:
            host += HOST_COST
            here, there = (device, about[0]), (about[2], about[3])
            ways = (device, "out"), (about[2], "in")
            begin = max(host, free[here], free[there], *(links_free[way] for way in ways))
            end = ran([here, there], begin, 2 * LINK[1] + about[1] / LINK[0])
            links_free.update(dict.fromkeys(ways, end))
        elif what in ("upload", "download"):
            host += HOST_COST
            queue, way = (device, about[0]), (device, what)
            begin = max(host, free[queue], links_free[way])
            host = links_free[way] = ran([queue], begin, UP[1] + about[1] / UP[0])
        elif what == "wait_stream":
            free[device, about[0]] = max(free[device, about[0]], free[about[1], about[2]])
        elif what == "record":
            passed[device, about[1]] = max(host, free[device, about[0]])
        elif what == "wait_event":
            moment = passed.get((about[1], about[2]), 0.0)
            free[device, about[0]] = max(free[device, about[0]], moment)
        elif what == "synchronize_event":
            host = max(host, passed.get((device, about[0]), 0.0))
        elif what == "synchronize_stream":
            host = max(host, free[device, about[0]])
        elif what == "synchronize":
            host = max(host, *(free[device, s] for s in range(STREAMS)))
    return host, passed, dict(spans)
