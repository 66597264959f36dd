"""How equal the runs of a schedule are, on a busy machine, and what a schedule costs.

    python benchmarks/determinism.py [--times 1000] [--seeds 10] [--jobs 4]

Runs the training step of the README on 4 devices under each seed many times, in several processes
at once, and counts the digests: of the choices, the launches and the memory taken at each. Then
looks for every ordering fault of `tests/support/ordering_faults.py`, and replays its token 100
times. Prints too how many schedules there are a second in one process; what a switch costs, next to
the hand-over of two bare locks between two threads; and how much longer a kernel takes in a process
that has had schedules than in one that has not, in pairs.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import gc
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

import simgpu
from benchmarks.pairs import launches_compared
from dataparallel import DataParallel
from tests.support.ordering_faults import ALWAYS_WRONG, PROGRAMS, outcome


def training_step(count: int):
    """Forward, backward and update of one layer on `count` devices."""
    torch.manual_seed(0)
    net = DataParallel(nn.Linear(5, 2).to("simgpu:0"), list(range(count)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(30, 5)

    def step():
        optimizer.zero_grad()
        net(x.to("simgpu:0")).square().sum().backward()
        optimizer.step()

    step()
    return step


def digests(seed: int, times: int) -> collections.Counter[str]:
    """Runs the step `times` times under one seed, from the same parameters."""
    torch.set_num_threads(1)
    found: collections.Counter[str] = collections.Counter()
    with simgpu.devices(4):
        step = training_step(4)
        for _ in range(times):
            with simgpu.schedule(seed, "random") as schedule:
                step()
            found[schedule.digest()] += 1
    return found


def print_faults(replays: int = 100) -> None:
    """After how many schedules each planted fault is found, and whether its token repeats it."""
    with simgpu.devices(4) as devices:
        for program in PROGRAMS + ALWAYS_WRONG:
            step = functools.partial(program, devices)
            begin = HOST_TIME()
            report = simgpu.schedules(step, 150)
            seconds = HOST_TIME() - begin
            if not report.problems:
                print(f"{program.__name__}: not found in {report.count} schedules")
                continue
            (token,) = report.tokens
            gc.collect()  # errors keep tensors: the memory taken is a part of the digest
            first = outcome(step, replay=token)
            equal = sum(outcome(step, replay=token) == first for _ in range(replays))
            print(
                f"{program.__name__}: found in schedule {report.count - 1}, {seconds:.1f} s; "
                f"{equal} of {replays} replays of {token} are equal",
                flush=True,
            )


def print_costs() -> None:
    torch.set_num_threads(1)
    with simgpu.devices(4):
        step, count = training_step(4), 200
        begin = HOST_TIME()
        for seed in range(count):
            with simgpu.schedule(seed):
                step()
        seconds = HOST_TIME() - begin
        print(f"{count / seconds:.0f} schedules a second of the training step on 4 devices")
    rounds = [(microseconds_per_switch(), microseconds_per_hand_over()) for _ in range(100)]
    for name, of in (("median", statistics.median), ("least", min)):
        switch, bare = (of(column) for column in zip(*rounds, strict=True))
        print(f"{switch:.1f} us a switch; between two bare locks {bare:.1f} ({name} of 100)")
    off, spread = launches_compared(simgpu.schedule)
    print(f"a kernel after schedules takes {off:.3f} times what it took before (+- {spread:.3f})")


def microseconds_per_switch(count: int = 1000) -> float:
    """Two threads that go on in turns."""

    def work():
        for _ in range(count):
            time.sleep(0)

    with simgpu.schedule() as schedule:
        threads = [threading.Thread(target=work) for _ in range(2)]
        begin = HOST_TIME()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = HOST_TIME() - begin
    return seconds / schedule.switches * 1e6


def microseconds_per_hand_over(count: int = 1000) -> float:
    """Two threads that do nothing else: what Python and the system take of the above."""
    one, other = threading.Lock(), threading.Lock()

    def work(mine, others):
        for _ in range(count):
            mine.acquire()
            others.release()

    one.acquire()
    threads = [threading.Thread(target=work, args=locks) for locks in ((one, other), (other, one))]
    other.acquire()
    for thread in threads:
        thread.start()
    begin = HOST_TIME()
    one.release()
    for thread in threads:
        thread.join()
    return (HOST_TIME() - begin) / (2 * count) * 1e6


HOST_TIME = time.perf_counter  # kept from before the schedules, in which time is their own


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=4)
    asked = parser.parse_args()
    spread = [asked.times // asked.jobs + (i < asked.times % asked.jobs) for i in range(asked.jobs)]
    with concurrent.futures.ProcessPoolExecutor(asked.jobs) as pool:
        for seed in range(asked.seeds):
            parts = list(pool.map(digests, [seed] * asked.jobs, spread))
            found = sum(parts, collections.Counter())
            most = max(found.values())
            print(f"seed {seed}: {most} of {found.total()} digests are equal", flush=True)
    print_faults()
    print_costs()


if __name__ == "__main__":
    main()
