"""The caching allocator: its figures and the layout of its segments at each step of a program.

A case is a program: how much memory the device has, how many side streams there are, and steps.
What is seen of a step is a few figures, for a reader, and a checksum of all figures and of the
layout.
"""

import json
import random
import zlib

import torch

KIB, MIB = 2**10, 2**20
FIGURES = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes", "segment")
MEMORIES = (256 * MIB, 2048 * MIB, 16384 * MIB)
PROGRAMS = 30  # for each memory, without streams and with


def _size(rng, memory):
    """A size near the limits of the allocator's rules, or of any kind; now and then too large."""
    kind = rng.randrange(9)
    if kind == 0:
        return rng.randrange(2000)
    if kind == 1:
        return rng.randrange(1, 2 * MIB)
    if kind == 2:
        near = (1, 2, 10, 20)[rng.randrange(4)] * MIB
        return near + (-1, 0, 1)[rng.randrange(3)]
    if kind == 3:
        return rng.randrange(MIB, 10 * MIB)
    if kind == 4:
        return rng.randrange(10 * MIB, 60 * MIB)
    if kind == 5:
        return rng.randrange(1, 20) * MIB
    if kind == 6:
        return rng.randrange(1, 64) * 512
    if kind == 7 and memory <= 256 * MIB:
        return rng.randrange(memory // 2)
    return rng.randrange(1, 300 * KIB)


def program(seed, memory, streams):
    """A random program; `streams` is how many streams there are beside the default one."""
    rng = random.Random(seed)
    live, made, steps = [], 0, []
    for _ in range(rng.randrange(5, 80)):
        what = rng.random()
        if what < 0.5 or not live:
            steps.append(["allocate", _size(rng, memory), rng.randrange(streams + 1)])
            live.append(made)
            made += 1
        elif what < 0.75:
            steps.append(["free", live.pop(rng.randrange(len(live)))])
        elif what < 0.94 and streams:
            steps.append(["record", live[rng.randrange(len(live))], rng.randrange(streams + 1)])
        else:
            names = ("empty_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats")
            steps.append([(*names, "synchronize")[rng.randrange(4 if streams else 3)]])
    return {"memory": memory, "streams": streams, "steps": steps}


def cases(model):
    """Programs for each memory, without side streams and with up to three of them."""
    if model != "h100":
        return  # the allocator asks for no property of a device but its memory
    for memory in MEMORIES:
        for number in range(PROGRAMS):
            yield program(f"{memory} {number}", memory, 0) | {"number": number}
            streams = 1 + number % 3
            yield program(f"{memory} {number} streams", memory, streams) | {"number": number}


def _layout(module, device, numbers):
    """Segments with their blocks, in an order that does not depend on addresses."""
    found = []
    for segment in module.memory_snapshot():
        if segment["device"] == device.index:
            sizes = [segment[name] for name in ("total_size", "allocated_size", "active_size")]
            blocks = [[b["size"], b["requested_size"], b["state"]] for b in segment["blocks"]]
            stream = numbers.get(segment["stream"], "another")
            found.append([*sizes, segment["segment_type"], stream, blocks])
    return sorted(found, key=json.dumps)


def _start(module, device):
    module.synchronize(device)
    module.empty_cache()
    module.reset_peak_memory_stats(device)
    module.reset_accumulated_memory_stats(device)


def run(case, side):
    """What is seen after each step: figures and a checksum, or that memory was out."""
    module, device = side.module, side.device()
    with torch.device(device):
        _start(module, device)
        default = module.default_stream(device)
        streams = [default, *(module.Stream(device=device) for _ in range(case["streams"]))]
        numbers = {stream.cuda_stream: i for i, stream in enumerate(streams)} | {0: 0}
        counted = {k: v for k, v in module.memory_stats(device).items() if k.startswith("num_")}
        tensors, seen = [], []
        for step in case["steps"]:
            seen.append(_step(step, module, device, streams, tensors))
            stats = module.memory_stats(device)
            stats = {name: value - counted.get(name, 0) for name, value in stats.items()}
            stats.setdefault("num_oom_rejections", 0)  # which torch 2.11 does not count
            if step[0] == "reset_accumulated_memory_stats":
                now = module.memory_stats(device)
                counted = {k: now[k] for k in counted}
                stats = {name: value - counted.get(name, 0) for name, value in now.items()}
                stats.setdefault("num_oom_rejections", 0)
            figures = [stats.get(f"{name}.all.current") for name in FIGURES]
            whole = [sorted(stats.items()), _layout(module, device, numbers)]
            seen[-1] += [*figures, f"{zlib.crc32(json.dumps(whole).encode()):08x}"]
        tensors.clear()
        _start(module, device)
    return seen


def _step(step, module, device, streams, tensors):
    """Do one step; returns ["out of memory"] or []."""
    if step[0] == "allocate":
        try:
            with module.stream(streams[step[2]]):
                tensors.append(torch.empty(step[1], dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            tensors.append(None)
            return ["out of memory"]
    elif step[0] == "free":
        tensors[step[1]] = None
    elif step[0] == "record":
        if tensors[step[1]] is not None:
            tensors[step[1]].record_stream(streams[step[2]])
    elif step[0] == "empty_cache":
        module.empty_cache()
    else:
        getattr(module, step[0])(device)
    return []
