"""What `simgpu.asynchronous` costs: microseconds per operator, next to the same operator at once.

    python -m benchmarks.streams

Both are measured in turns, in CPU time, best of several rounds, in one run. The time of an
operator that is queued is that of its launch and of its work later.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import simgpu

CALLS = 100
ROUNDS = 25


def operators() -> dict[str, Callable[[], torch.Tensor]]:
    """Operators of small tensors, of which the overhead is nearly all."""
    x = torch.ones(8, 8).to("simgpu:0")
    weight, rows = torch.ones(8, 8).to("simgpu:0"), torch.arange(8).to("simgpu:0")
    return {
        "add": lambda: x + x,
        "mm": lambda: x @ weight,
        "add_": lambda: x.mul_(1.0),
        "sum": lambda: x.sum(),
        "softmax": lambda: torch.softmax(x, 1),
        "layer_norm": lambda: torch.nn.functional.layer_norm(x, (8,)),
        "embedding": lambda: torch.nn.functional.embedding(rows, weight),
    }


def seconds(call: Callable[[], torch.Tensor]) -> float:
    begin = time.process_time()
    for _ in range(CALLS):
        call()
    torch.simgpu.synchronize(0)
    return (time.process_time() - begin) / CALLS


def measured(call: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """Seconds per call, at once and queued: the best of rounds that take turns."""
    at_once, queued = [], []
    for _ in range(ROUNDS):
        at_once.append(seconds(call))
        with simgpu.asynchronous():
            queued.append(seconds(call))
    return min(at_once), min(queued)


def main() -> None:
    print(f"{'':12}{'at once':>10}{'queued':>10}{'ratio':>8}    (microseconds per call)")
    with simgpu.devices(1):
        for name, call in operators().items():
            call()
            now, later = (1e6 * each for each in measured(call))
            print(f"{name:12}{now:10.1f}{later:10.1f}{later / now:8.1f}")


if __name__ == "__main__":
    main()
