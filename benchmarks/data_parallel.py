"""What DataParallel costs: ours next to its floor and to torch.nn.DataParallel, in one run.

    python benchmarks/data_parallel.py [--quick] [--devices simgpu|cuda] [--oversubscribe]

Prints for each workload (see `workloads`) ours / floor and ours / theirs with the limits that the
project holds itself to. Two things say how much of what is above the floor has to be: the floor
with the copies of ours on top, and a step that is written out by hand (`by_hand`). Then come times
over 1 to 64 devices and 1 to 1,000 parameters, with the line that fits them: growth has to be
linear. Steps are taken in turns, best of several rounds, with one intra-op thread. The floor is
compared by CPU time, which a busy machine disturbs least, and theirs by the clock, for their
threads wait for each other; real devices only by the clock. Kernels and copies are counted on
simulated devices only, where also the sweeps are.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

import torch
from timing import Step, best, line_through
from workloads import WORKLOADS, ManyParameters, Workload, steps_of, two_layers

import simgpu

MOST_DEVICES = 64
FARTHEST = 0.25  # of what the line says: how far a time of the sweep may be from it


def verdict(ratio: float, limit: float | None) -> tuple[str, bool]:
    """A ratio in words, and whether its limit was missed."""
    missed = limit is not None and ratio > limit
    against = "" if limit is None else f" (limit {limit:g}: {'MISSED' if missed else 'held'})"
    return f"{ratio:.2f}{against}", missed


def counted(step: Step) -> tuple[int, int]:
    """The kernels and copies of one step on simulated devices."""
    with simgpu.trace() as trace:
        step()
    return len(trace.kernels), len(trace.copies)


def copies_of(step: Step) -> Step:
    """The copies of one step by themselves: the same sizes, between the same devices."""
    with simgpu.trace() as trace:
        step()
    moves = []
    for copy in trace.copies:
        sent = torch.zeros(copy.nbytes, dtype=torch.uint8, device=copy.source)
        # One that is written over memory that is there costs less than one with memory of its own.
        there = torch.zeros_like(sent, device=copy.target) if copy.op == "copy_" else None
        moves.append((sent, copy.target, there))

    def run() -> None:
        for sent, target, there in moves:
            if there is None:
                sent.to(target, non_blocking=True)
            else:
                there.copy_(sent, non_blocking=True)

    return run


def synchronised(step: Step) -> Step:
    """The step, timed until the devices have done it."""

    def run() -> None:
        step()
        torch.cuda.synchronize()

    return run


def compare(work: Workload, devices: list[torch.device], rounds: int) -> bool:
    """Print one workload's ratios; return whether a limit was missed."""
    steps = steps_of(work, devices)
    real = devices[0].type == "cuda"
    if real:
        steps = {name: synchronised(step) for name, step in steps.items()}
    else:
        steps["copies"] = copies_of(steps["ours"])
    seconds = best(steps, work.number, rounds)
    work_time = {name: each.clock if real else each.cpu for name, each in seconds.items()}
    floor, floor_missed = verdict(work_time["ours"] / work_time["floor"], work.over_floor)
    waited = seconds["ours"].clock / seconds["theirs"].clock
    theirs, theirs_missed = verdict(waited, work.over_theirs)
    count = min(work.devices, len(devices))
    plural = "s" * (count > 1)
    print(f"{work.name}, {count} device{plural}: ours / floor {floor}, ours / theirs {theirs}")
    print("    ms of CPU (clock): " + ", ".join(
        f"{name} {each.cpu * 1e3:.3f} ({each.clock * 1e3:.3f})" for name, each in seconds.items()
    ))  # fmt: skip
    if real:
        return floor_missed or theirs_missed
    launches = {name: counted(steps[name]) for name in ("ours", "theirs", "floor")}
    more = any(a > b for a, b in zip(launches["ours"], launches["theirs"], strict=True))
    counts = ", ".join(f"{name} {k} + {c}" for name, (k, c) in launches.items())
    bound = (work_time["floor"] + work_time["copies"]) / work_time["floor"]
    least = ""
    if "by hand" in work_time:
        least = f", by hand / floor {work_time['by hand'] / work_time['floor']:.2f}"
    print(f"    floor with the copies of ours / floor {bound:.2f}{least}")
    print(f"    kernels + copies: {counts}" + ("  MISSED: ours has more" if more else ""))
    return floor_missed or theirs_missed or more


def grow(title: str, works: dict[int, Workload], devices: list[torch.device], rounds: int) -> bool:
    """Print how the time grows with a size; return whether it is not along a line."""
    times: dict[int, dict[str, float]] = {}  # CPU seconds
    for size, work in works.items():
        found = best(steps_of(work, devices, ("ours", "floor")), work.number, rounds)
        times[size] = {name: each.cpu for name, each in found.items()}
    print(f"{title}, training step, ms (floor): " + ", ".join(
        f"{size}: {each['ours'] * 1e3:.2f} ({each['floor'] * 1e3:.2f})"
        for size, each in times.items()
    ))  # fmt: skip
    missed = False
    # One device is another path, without replicas.
    sizes = [size for size, work in works.items() if work.devices > 1]
    for name in ("ours", "floor"):
        line = line_through(sizes, [times[size][name] for size in sizes])
        straight = line.worst <= FARTHEST
        missed |= not straight
        print(
            f"    {name}: {line.base * 1e6:.0f} us + {line.slope * 1e6:.1f} us for each; farthest "
            f"from the line {line.worst:.0%}  (limit {FARTHEST:.0%}: "
            f"{'held' if straight else 'MISSED'})"
        )
    return missed


def sweeps() -> dict[str, dict[int, Workload]]:
    """Workloads of growing sizes: devices with four rows each, and parameters on four devices."""
    return {
        "two layers on 1 to 64 devices": {
            n: Workload("", two_layers, (4 * n, 16), n, True, None, None, 1 + 16 // n)
            for n in (1, 2, 4, 8, 16, 32, MOST_DEVICES)
        },
        "1 to 1,000 parameters on 4 devices": {
            count: Workload(
                "",
                lambda count=count: ManyParameters(count),
                (8, 4),
                4,
                True,
                None,
                None,
                1 + 16 // count,
            )
            for count in (1, 3, 10, 30, 100, 300, 1000)
        },
    }


@contextlib.contextmanager
def borrowed(kind: str, oversubscribe: bool) -> Iterator[list[torch.device]]:
    """As many devices as the largest sweep takes, or as many real ones as there are."""
    if kind == "simgpu":
        with simgpu.devices(MOST_DEVICES) as devices:
            yield list(devices)
    elif oversubscribe:
        yield [torch.device("cuda", 0)] * 32
    else:
        yield [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def main() -> int:
    """Print the ratios and the sweeps; the exit status says whether all limits held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    parser.add_argument("--devices", choices=("simgpu", "cuda"), default="simgpu")
    parser.add_argument("--oversubscribe", action="store_true", help="many slots on one GPU")
    arguments = parser.parse_args()
    kind = "cuda" if arguments.oversubscribe else arguments.devices
    torch.set_num_threads(1)
    rounds = 5 if arguments.quick else 40
    with borrowed(kind, arguments.oversubscribe) as devices:
        missed = [compare(work, devices, rounds) for work in WORKLOADS]
        if kind == "simgpu":
            missed += [grow(title, of, devices, rounds // 4 + 1) for title, of in sweeps().items()]
    return int(any(missed))


if __name__ == "__main__":
    sys.exit(main())
