"""Four ways to spread a model over GPUs, each trained for a few steps.

    python -m simgpu run --devices 4 examples/multi_gpu.py
    python examples/multi_gpu.py                              # real GPUs, or the CPU

1. one block of a model in parallel, the blocks around it on one device;
2. a wrapper that passes on the attributes of what it wraps;
3. `DataParallel` written out in the four primitives it is made of;
4. a model with one part on the CPU and the other on a GPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dataparallel import DataParallel, gather, parallel_apply, replicate, scatter

STEPS = 20


class ParallelBlock(nn.Module):
    """Three blocks in a row, of which only the middle one works on all devices."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        super().__init__()
        self.before = nn.Linear(10, 20)
        self.middle = DataParallel(nn.Linear(20, 20), device_ids=devices)
        self.after = nn.Linear(20, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.middle(self.before(x).relu()).relu())


class Transparent(DataParallel):
    """A DataParallel through which the attributes of the wrapped module are seen."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # The wrapped module answers for whatever the wrapper itself does not have.
            return getattr(super().__getattr__("module"), name)


class Named(nn.Linear):
    """A layer with a method of its own."""

    def describe(self) -> str:
        return f"{self.in_features} -> {self.out_features}"


def composed(
    module: nn.Module,
    batch: torch.Tensor,
    devices: Sequence[torch.device],
    output_device: torch.device | None = None,
) -> torch.Tensor:
    """Do in four steps what `dataparallel.data_parallel` does."""
    if not devices:
        return module(batch)
    chunks = scatter(batch, devices)
    copies = replicate(module, devices[: len(chunks)])
    outputs = parallel_apply(copies, [(chunk,) for chunk in chunks])
    return gather(outputs, devices[0] if output_device is None else output_device)


class TwoPlaces(nn.Module):
    """A large table of vectors that stays on the CPU, and a layer on a GPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 10)
        self.layer = nn.Linear(10, 10).to(device)
        self.device = device

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(words).to(self.device))


def train(
    forward: Callable[[torch.Tensor], torch.Tensor],
    parameters: Sequence[nn.Parameter],
    inputs: torch.Tensor,
    targets: torch.Tensor,
) -> tuple[float, float]:
    """Fit `targets` and return the first loss and the last."""
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    losses = []
    for _ in range(STEPS):
        loss = nn.functional.mse_loss(forward(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def gpus() -> list[torch.device]:
    """Return the GPUs of this process, real or simulated; none on a machine that has none."""
    kind = torch.accelerator.current_accelerator()
    if kind is None or not torch.accelerator.is_available():
        return []
    return [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]


def main() -> None:
    torch.manual_seed(0)
    devices = gpus()
    home = devices[0] if devices else torch.device("cpu")
    print(f"{len(devices)} GPUs")

    def report(title: str, losses: tuple[float, float]) -> None:
        print(f"{title}: loss {losses[0]:.4f} -> {losses[1]:.4f}")

    x, y = torch.randn(30, 10, device=home), torch.randn(30, 20, device=home)

    block = ParallelBlock(devices).to(home)
    report("one parallel block", train(block, list(block.parameters()), x, y))

    wrapped = Transparent(Named(10, 20).to(home), device_ids=devices)
    losses = train(wrapped, list(wrapped.parameters()), x, y)
    report(f"transparent wrapper of {wrapped.describe()}", losses)

    plain = nn.Linear(10, 20).to(home)
    losses = train(lambda batch: composed(plain, batch, devices), list(plain.parameters()), x, y)
    report("four primitives", losses)

    split = TwoPlaces(home)
    words = torch.randint(1000, (30,))
    losses = train(split, list(split.parameters()), words, y[:, :10])
    report(f"embedding on {split.embedding.weight.device}, layer on {home}", losses)


if __name__ == "__main__":
    main()
