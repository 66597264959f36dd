"""Benchmark of simulated devices: time relative to the plain CPU, measured in one run.

    python benchmarks/overhead.py [--quick]

Every pair is timed in turns, best of several rounds, in CPU time of one intra-op thread, so that
a busy machine disturbs both sides alike and as little as possible. The limits are those that the
project holds itself to.
"""

from __future__ import annotations

import argparse
import sys
import time
import timeit
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import simgpu

Step = Callable[[], Any]


class Wrapper(torch.Tensor):
    """The usual alternative to a backend: a tensor subclass that catches every operator."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        self = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        unwrapped = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        return cls(func(*unwrapped, **(kwargs or {})))


class TreeMapWrapper(Wrapper):
    """The same as tutorials write it: any nesting of arguments and results is mapped."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        tree_map_only = torch.utils._pytree.tree_map_only
        args, kwargs = tree_map_only(cls, lambda tensor: tensor.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


def best(steps: dict[str, Step], number: int, rounds: int) -> dict[str, float]:
    """Seconds per call of each step: the best of `rounds` rounds, taken in turns."""
    for step in steps.values():
        step()
    times = {name: float("inf") for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            seconds = timeit.timeit(step, timer=time.process_time, number=number) / number
            times[name] = min(times[name], seconds)
    return times


def training_step(
    model: nn.Module,
    batch: torch.Tensor,
    target: torch.Tensor,
    kind: type[torch.optim.Optimizer],
) -> Step:
    """One step of training by an optimizer of this kind."""
    optimizer = kind(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(batch), target).backward()
        optimizer.step()

    return step


def peers(x: torch.Tensor) -> dict[str, Step]:
    """The same add on what PyTorch itself has for running without devices."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._local_tensor import LocalTensor, LocalTensorMode

    fake_mode = FakeTensorMode()
    fake = fake_mode.from_tensor(x)
    local = LocalTensor({rank: x.clone() for rank in range(2)})
    local_mode = LocalTensorMode(frozenset(range(2)))

    def add_local() -> object:
        with local_mode:
            return local + local

    return {"FakeTensor": lambda: fake + fake, "LocalTensor of 2 ranks": add_local}


def small_cnn() -> nn.Module:
    """Convolution, batch norm, dropout, linear: all overhead, next to no arithmetic."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, 10),
    )


class Block(nn.Module):
    """A residual block of two 3x3 convolutions."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.skip = (
            nn.Identity()
            if stride == 1 and channels_in == channels
            else nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.skip(x))


def resnet18() -> nn.Module:
    """As many layers and parameters as ResNet-18 (11 million)."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
    widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *(Block(*width) for width in widths),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


class Attention(nn.Module):
    """A Transformer encoder layer and a head: 8 heads over 64 positions of width 256."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.1, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x).mean(1))


def on_both(
    make: Callable[[], nn.Module],
    batch: torch.Tensor,
    classes: int,
    optimizer: type[torch.optim.Optimizer],
) -> dict[str, Step]:
    """The same training step on the CPU and on a simulated GPU."""
    return {
        device: step_on(make, batch, classes, optimizer, device) for device in ("cpu", "simgpu:1")
    }


def step_on(
    make: Callable[[], nn.Module],
    batch: torch.Tensor,
    classes: int,
    optimizer: type[torch.optim.Optimizer],
    device: str,
) -> Step:
    """A training step of a network on one device."""
    torch.manual_seed(0)
    model = make()
    target = torch.arange(len(model(batch))) % classes
    model.to(device)
    return training_step(model, batch.to(device), target.to(device), optimizer)


class Recurrent(nn.Module):
    """A recurrent network's outputs, on 35 steps of 20 rows."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers = kind(16, 16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0][-1]


def twenty_layers() -> nn.Module:
    """Where the operators are small and the optimizer takes a good part of them."""
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(20)))


Row = tuple[str, float, float | None]  # what is compared, the ratio, the limit


def adds(rounds: int) -> list[Row]:
    """A lone small kernel, next to the CPU and to other ways to catch operators."""
    x = torch.randn(8, 8)
    on_device = x.to("simgpu:1")
    wrapped, mapped = Wrapper(x), TreeMapWrapper(x)
    add = best(
        {
            "cpu": lambda: x + x,
            "simgpu": lambda: on_device + on_device,
            "wrapper": lambda: wrapped + wrapped,
            "tree_map wrapper": lambda: mapped + mapped,
        },
        number=2_000,
        rounds=3 * rounds,
    )
    add.update(best(peers(x), number=100, rounds=3 * rounds))
    for name, seconds in add.items():
        print(f"add of two 8x8 tensors, {name}: {seconds * 1e6:.2f} us")
    limits = {"cpu": 8.0, "wrapper": None, "tree_map wrapper": 0.5}
    titles = {"cpu": "CPU", "wrapper": "minimal wrapper"}
    return [
        (f"add 8x8: simgpu / {titles.get(name, name)}", add["simgpu"] / add[name], limit)
        for name, limit in limits.items()
    ]


def draws(rounds: int) -> list[Row]:
    """Random numbers and dropout with CUDA's generator, next to the CPU's own."""
    rows: list[Row] = []
    limits = {64: (12.0, 8.0), 4096: (15.0, 3.0), 2**20: (6.0, 2.0)}
    for numel, (drawn, dropped) in limits.items():
        x = torch.ones(numel)
        on_device = x.to("simgpu:1")
        number = max(1, 2**17 // numel)
        rand = best(
            {
                "cpu": lambda n=numel: torch.rand(n),
                "simgpu": lambda n=numel: torch.rand(n, device="simgpu:1"),
            },
            number,
            rounds,
        )
        drop = best(
            {
                "cpu": lambda x=x: functional.dropout(x),
                "simgpu": lambda x=on_device: functional.dropout(x),
            },
            number,
            rounds,
        )
        rows.append((f"rand of {numel}: simgpu / CPU", rand["simgpu"] / rand["cpu"], drawn))
        rows.append((f"dropout of {numel}: simgpu / CPU", drop["simgpu"] / drop["cpu"], dropped))
    return rows


def training(rounds: int) -> list[Row]:
    """Training steps of whole networks."""
    rows: list[Row] = []

    def compare(
        title: str,
        make: Callable[[], nn.Module],
        batch: torch.Tensor,
        classes: int,
        limit: float,
        number: int,
        rounds: int = rounds,
        optimizer: type[torch.optim.Optimizer] = torch.optim.Adam,
    ) -> None:
        times = best(on_both(make, batch, classes, optimizer), number, rounds)
        ratio = times["simgpu:1"] / times["cpu"]
        rows.append((f"{title} training step: simgpu / CPU", ratio, limit))

    compare("small CNN", small_cnn, torch.randn(5, 3, 8, 8), 10, 2.2, 20, 2 * rounds)
    compare("ResNet-18-sized", resnet18, torch.randn(16, 3, 64, 64), 10, 1.05, 1)
    compare("Transformer layer", Attention, torch.randn(8, 64, 256), 10, 1.25, 2)
    sgd = torch.optim.SGD
    compare(
        "20 layers of 32 with SGD", twenty_layers, torch.randn(8, 32), 32, 2.2, 5, optimizer=sgd
    )
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        steps = torch.randn(35, 20, 16)
        compare(f"{kind.__name__} of 2 layers", lambda k=kind: Recurrent(k), steps, 16, 2.0, 2)
    return rows


def generators(rounds: int) -> list[Row]:
    """Training steps with CUDA's generator, next to the host's; each round has new devices."""
    networks: dict[str, tuple[Callable[[], nn.Module], torch.Tensor, int]] = {
        "small CNN": (small_cnn, torch.randn(5, 3, 8, 8), 20),
        "Transformer layer": (Attention, torch.randn(8, 64, 256), 2),
    }
    rows: list[Row] = []
    for title, (make, batch, number) in networks.items():
        times = {"cuda": float("inf"), "host": float("inf")}
        for _ in range(rounds):
            for rng, least in times.items():
                with simgpu.devices(2, rng=rng):
                    step = step_on(make, batch, 10, torch.optim.Adam, "simgpu:1")
                    times[rng] = min(least, best({rng: step}, number, rounds=1)[rng])
        ratio = times["cuda"] / times["host"]
        rows.append((f'{title} training step: CUDA\'s generator / rng="host"', ratio, 1.05))
    return rows


def main() -> int:
    """Print the ratios; the exit status says whether all limits held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a first look")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rounds = 3 if quick else 15
    with simgpu.devices(2):
        rows = adds(rounds) + draws(rounds) + training(rounds)
    rows += generators(rounds)
    for name, ratio, limit in rows:
        held = "held" if limit is None or ratio <= limit else "MISSED"
        print(f"{name}: {ratio:.2f}" + ("" if limit is None else f"  (limit {limit:g}: {held})"))
    return int(any(limit is not None and ratio > limit for _, ratio, limit in rows))


if __name__ == "__main__":
    sys.exit(main())
