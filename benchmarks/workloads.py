"""What the benchmark of DataParallel measures: networks, their batches, and the goals.

Each workload has up to two goals: ours / theirs (torch.nn.DataParallel on the same devices) and
ours / floor. The floor is what every implementation has to compute: the same chunks one after the
other on one device, joined by one torch.cat, and one backward pass. On one device it is the plain
module. On simulated devices, which compute one after the other anyway, what is above the floor is
all that data parallelism adds; `by_hand` says how much of that the least implementation adds too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from by_hand import ByHand
from timing import Step
from torch import nn

import dataparallel


class Workload(NamedTuple):
    """One thing to measure, and the goals for it; None where there is no goal."""

    name: str
    make: Callable[[], nn.Module]
    batch: tuple[int, ...]
    devices: int
    grad: bool
    over_floor: float | None
    over_theirs: float | None
    number: int  # calls in a round
    options: dict[str, Any] = {}  # noqa: RUF012 - a tuple's default, never changed


class Tutorial(nn.Module):
    """The model of PyTorch's data parallelism tutorial: one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def two_layers() -> nn.Module:
    """Two linear layers and an activation."""
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))


def mlp() -> nn.Module:
    """Fifty linear layers with an activation each: many small parameters."""
    return nn.Sequential(*(layer for _ in range(50) for layer in (nn.Linear(16, 16), nn.ReLU())))


class ManyParameters(nn.Module):
    """A vector that is multiplied with each of `count` parameters."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.factors = nn.ParameterList(torch.ones(4) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for factor in self.factors:
            x = x * factor
        return x


CACHED = {"cache_parameters": True}

WORKLOADS = [
    Workload("tutorial, training step", Tutorial, (30, 5), 1, True, 1.15, None, 20),
    Workload("50-layer MLP, training step", mlp, (32, 16), 1, True, 1.15, None, 1),
    Workload("tutorial, training step", Tutorial, (30, 5), 4, True, 2.3, 0.6, 5),
    Workload("50-layer MLP, training step", mlp, (32, 16), 8, True, 1.15, 0.4, 1),
    Workload("tutorial, inference", Tutorial, (30, 5), 4, False, None, 0.6, 10),
    Workload("50-layer MLP, inference", mlp, (32, 16), 8, False, 1.4, 0.6, 1),
    Workload(
        "tutorial, inference, cache_parameters",
        Tutorial, (30, 5), 4, False, None, 0.35, 10, CACHED,
    ),
    Workload(
        "50-layer MLP, inference, cache_parameters",
        mlp, (32, 16), 8, False, 1.2, 0.35, 1, CACHED,
    ),
    Workload("two layers, training step", two_layers, (8, 16), 2, True, 1.7, None, 5),
    Workload("two layers, training step", two_layers, (32, 16), 8, True, 1.25, None, 2),
    Workload("two layers, training step", two_layers, (128, 16), 32, True, 1.2, None, 1),
]  # fmt: skip


def step_of(model: Step, batch: torch.Tensor, grad: bool) -> Step:
    """One forward, and one backward if there are gradients."""

    def train() -> None:
        model(batch).sum().backward()

    def infer() -> None:
        with torch.no_grad():
            model(batch)

    return train if grad else infer


def steps_of(
    work: Workload, devices: Sequence[torch.device], names: Sequence[str] = ()
) -> dict[str, Step]:
    """The steps of these names, or of all: ours, theirs, the floor's, and that written by hand."""
    torch.manual_seed(0)
    used = list(devices[: work.devices])
    net = work.make().to(used[0])
    net.train(work.grad)
    batch = torch.randn(work.batch, device=used[0])

    def chunk_by_chunk(whole: torch.Tensor) -> torch.Tensor:
        return torch.cat([net(chunk) for chunk in whole.chunk(len(used))])

    models: dict[str, Callable[[], Step]] = {
        "ours": lambda: dataparallel.DataParallel(net, used, **work.options),
        "theirs": lambda: nn.DataParallel(net, used),
        "floor": lambda: net if len(used) == 1 else chunk_by_chunk,
    }
    if work.grad and len(used) > 1:
        models["by hand"] = lambda: ByHand(net, used)
    return {name: step_of(models[name](), batch, work.grad) for name in names or models}
