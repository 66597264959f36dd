"""Benchmark of `as_cuda`: time relative to the same program written for simgpu.

    python benchmarks/as_cuda.py [--quick]

One process measures both, in turns and in CPU time of one thread: the devices are entered once
under each name per round, since the name holds for the whole process. The limits are those that
the project holds itself to.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from overhead import resnet18, small_cnn
from torch import nn
from torch.nn import functional

import simgpu


def step_on(device: str, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Callable:
    """One step of training, with what a program does around it: moves, a loss, a progress line."""
    torch.manual_seed(0)
    model = make().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    batch, target = torch.randn(shape), torch.arange(shape[0]) % 10

    def step() -> str:
        x, y = batch.to(device, non_blocking=True), target.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return f"{loss.item():.3f} on {loss.device}"

    return step


WORLDS: dict[str, tuple[Callable[[], AbstractContextManager], str]] = {
    "simgpu": (lambda: simgpu.devices(2), "simgpu:1"),
    "cuda": (lambda: simgpu.as_cuda(2), "cuda:1"),
}


def ratio(make: Callable[[], nn.Module], shape: tuple[int, ...], number: int, rounds: int) -> float:
    """CPU time under the name of CUDA, over that under their own: best of `rounds` each."""
    best = dict.fromkeys(WORLDS, float("inf"))
    for _ in range(rounds):
        for name, (world, device) in WORLDS.items():
            with world():
                step = step_on(device, make, shape)
                assert device in step(), "the device is called what it was asked for as"
                start = time.process_time()
                for _ in range(number):
                    step()
                best[name] = min(best[name], (time.process_time() - start) / number)
    return best["cuda"] / best["simgpu"]


def main() -> int:
    """Print the ratios; the exit status says whether the limits held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    small = ratio(small_cnn, (5, 3, 8, 8), 20, 5 if quick else 30)
    large = ratio(resnet18, (16, 3, 64, 64), 1, 2 if quick else 10)
    rows = [("small CNN", small, 2.0), ("ResNet-18-sized", large, 1.1)]
    for name, value, limit in rows:
        held = "held" if value <= limit else "MISSED"
        print(f"{name} training step: as CUDA / simgpu: {value:.2f}  (limit {limit:g}: {held})")
    return int(any(value > limit for _, value, limit in rows))


if __name__ == "__main__":
    sys.exit(main())
