"""How equal the runs of a schedule are, on a busy machine, and what a schedule costs.

    python benchmarks/determinism.py [--times 1000] [--seeds 10] [--jobs 4]

Runs the training step of the README on 4 devices under each seed many times, in several processes
at once, and counts the digests: of the choices, the launches and the memory taken at each. Prints
too how many schedules and switches there are a second in one process, and how much longer a kernel
takes while the package of schedules is loaded, and none is in force.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

import simgpu
from dataparallel import DataParallel


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


def print_costs() -> None:
    with simgpu.devices(4):
        step, count = training_step(4), 200
        begin = time.perf_counter()
        for seed in range(count):
            with simgpu.schedule(seed):
                step()
        seconds = time.perf_counter() - begin
        print(f"{count / seconds:.0f} schedules a second of the training step on 4 devices")
        print(f"{microseconds_per_switch():.1f} us a switch")
        rounds = [launch_seconds() for _ in range(15)]
        off = statistics.median(launch_seconds() / former for former in rounds)
        print(f"a kernel after schedules takes {off:.3f} times what it took before")


def microseconds_per_switch(count: int = 5000) -> float:
    """Two threads that hand the baton to each other."""

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


HOST_TIME = time.perf_counter  # kept from before the schedules, in which time is their own


def launch_seconds(count: int = 2000) -> float:
    x = torch.ones(4, device="simgpu:1")
    begin = HOST_TIME()
    for _ in range(count):
        x + x
    return HOST_TIME() - begin


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
    print_costs()


if __name__ == "__main__":
    main()
