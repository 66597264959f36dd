"""What `simgpu.races` and `simgpu.asynchronous` cost, next to the same operator without them.

    python -m benchmarks.streams

All are measured in turns, in CPU time, best of several rounds, in one run. The time of an
operator that is queued is that of its launch and of its work later. Then, what is left of them:
how much longer a kernel takes after they have ended than where they never were, and after a clock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch

import simgpu
from benchmarks.pairs import launches_compared

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


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "at once": contextlib.nullcontext,
    "races": simgpu.races,
    "queued": simgpu.asynchronous,
}


def measured(call: Callable[[], torch.Tensor]) -> dict[str, float]:
    """Microseconds per call, in each way: the best of rounds that take turns."""
    best = dict.fromkeys(WAYS, float("inf"))
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            with way():
                best[name] = min(best[name], 1e6 * seconds(call))
    return best


def clock() -> contextlib.AbstractContextManager[object]:
    return simgpu.clock("A100")


def main() -> None:
    torch.set_num_threads(1)  # threads of a kernel that wait for the next one take CPU time
    first, *others = WAYS
    columns = [*WAYS, *(f"{name} / {first}" for name in others)]
    print(f"{'':12}" + "".join(f"{column:>18}" for column in columns) + "    (microseconds)")
    with simgpu.devices(1):
        for name, call in operators().items():
            call()
            found = measured(call)
            numbers = [*found.values(), *(found[name] / found[first] for name in others)]
            print(f"{name:12}" + "".join(f"{number:18.1f}" for number in numbers))
    for had in (simgpu.races, simgpu.asynchronous, clock):
        ratio, margin = launches_compared(had)
        print(f"a kernel after {had.__name__}: {ratio:.3f} +- {margin:.3f} of one without")


if __name__ == "__main__":
    main()
