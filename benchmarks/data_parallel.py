"""Benchmark of DataParallel: ours beside torch.nn.DataParallel on the same devices, in one run.

    python benchmarks/data_parallel.py [--quick] [--devices simgpu|cuda] [--oversubscribe]

Both sides are timed in turns, best of several rounds, so that a busy machine disturbs both alike.
One intra-op thread. Next to them stands the floor: the same chunks computed one after the other on
one device, without any parallelism, which every implementation has to do. On simulated devices,
which compute one after the other anyway, no ratio can be below floor / theirs; what is above the
floor is what data parallelism adds. The limits are those that the project holds itself to. Kernels
and copies are counted on simulated devices only.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import timeit
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

import dataparallel
import simgpu

Step = Callable[[], Any]


class Workload(NamedTuple):
    """One thing to measure: the module, its batch, how many devices, and the limit for ours."""

    name: str
    make: Callable[[], nn.Module]
    batch: tuple[int, ...]
    devices: int
    grad: bool
    options: dict[str, Any]
    limit: float
    number: int


class Tutorial(nn.Module):
    """The model of PyTorch's data parallelism tutorial: one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def mlp() -> nn.Module:
    """Fifty linear layers with an activation each: many small parameters."""
    return nn.Sequential(*(layer for _ in range(50) for layer in (nn.Linear(16, 16), nn.ReLU())))


WORKLOADS = [
    Workload("tutorial, training step", Tutorial, (30, 5), 4, True, {}, 0.6, 20),
    Workload("50-layer MLP, training step", mlp, (32, 16), 8, True, {}, 0.4, 1),
    Workload("tutorial, inference", Tutorial, (30, 5), 4, False, {}, 0.6, 20),
    Workload("50-layer MLP, inference", mlp, (32, 16), 8, False, {}, 0.6, 2),
    Workload(
        "tutorial, inference, cache_parameters",
        Tutorial, (30, 5), 4, False, {"cache_parameters": True}, 0.35, 20,
    ),
    Workload(
        "50-layer MLP, inference, cache_parameters",
        mlp, (32, 16), 8, False, {"cache_parameters": True}, 0.35, 2,
    ),
]  # fmt: skip


def step_of(model: Step, batch: torch.Tensor, grad: bool) -> Step:
    """One forward, and one backward if there are gradients."""

    def train() -> None:
        model(batch).sum().backward()

    def infer() -> None:
        with torch.no_grad():
            model(batch)

    return train if grad else infer


def steps_of(work: Workload, devices: list[torch.device]) -> dict[str, Step]:
    """The step of both implementations and of none."""
    torch.manual_seed(0)
    places = devices[: work.devices]
    net = work.make().to(places[0])
    net.train(work.grad)
    batch = torch.randn(work.batch, device=places[0])

    def chunk_by_chunk(whole: torch.Tensor) -> torch.Tensor:
        return torch.cat([net(chunk) for chunk in whole.chunk(len(places))])

    ours = dataparallel.DataParallel(net, places, **work.options)
    theirs = nn.DataParallel(net, places)
    models = {"ours": ours, "theirs": theirs, "floor": chunk_by_chunk}
    return {name: step_of(model, batch, work.grad) for name, model in models.items()}


def best(steps: dict[str, Step], number: int, rounds: int) -> dict[str, float]:
    """Seconds per call of each step: the best of `rounds` rounds, taken in turns."""
    for step in steps.values():
        step()
        step()
    times = {name: float("inf") for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            seconds = timeit.timeit(step, number=number) / number
            times[name] = min(times[name], seconds)
    return times


def counted(step: Step) -> tuple[int, int]:
    """The kernels and copies of one step on simulated devices."""
    with simgpu.trace() as trace:
        step()
    return len(trace.kernels), len(trace.copies)


@contextlib.contextmanager
def borrowed(kind: str, oversubscribe: bool) -> Iterator[list[torch.device]]:
    """Eight devices, or as many real ones as there are."""
    if kind == "simgpu":
        with simgpu.devices(8) as devices:
            yield list(devices)
    elif oversubscribe:
        yield [torch.device("cuda", 0)] * 8
    else:
        yield [torch.device("cuda", index) for index in range(torch.cuda.device_count())]


def main() -> int:
    """Print the ratios; the exit status says whether all limits held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    parser.add_argument("--devices", choices=("simgpu", "cuda"), default="simgpu")
    parser.add_argument("--oversubscribe", action="store_true", help="eight slots on one GPU")
    arguments = parser.parse_args()
    kind = "cuda" if arguments.oversubscribe else arguments.devices
    torch.set_num_threads(1)
    rounds = 5 if arguments.quick else 30
    missed = False
    with borrowed(kind, arguments.oversubscribe) as devices:
        for work in WORKLOADS:
            steps = steps_of(work, devices)
            if kind == "cuda":
                steps = {name: synchronised(step) for name, step in steps.items()}
            seconds = best(steps, work.number, rounds)
            ratio = seconds["ours"] / seconds["theirs"]
            held = ratio <= work.limit
            print(
                f"{work.name}, {min(work.devices, len(devices))} devices: ours / theirs "
                f"{ratio:.2f}  (limit {work.limit:g}: {'held' if held else 'MISSED'})\n    "
                + ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in seconds.items())
                + f"; floor / theirs {seconds['floor'] / seconds['theirs']:.2f}"
            )
            missed |= not held
            if kind == "simgpu":
                launches = {name: counted(steps[name]) for name in ("ours", "theirs")}
                fewer = all(a <= b for a, b in zip(*launches.values(), strict=True))
                print(
                    "    kernels and copies: "
                    + ", ".join(f"{name} {k} + {c}" for name, (k, c) in launches.items())
                    + ("" if fewer else "  MISSED: ours has more")
                )
                missed |= not fewer
    return int(missed)


def synchronised(step: Step) -> Step:
    """The step, timed until the devices have done it."""

    def run() -> None:
        step()
        torch.cuda.synchronize()

    return run


if __name__ == "__main__":
    sys.exit(main())
