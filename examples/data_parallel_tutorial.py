"""Data parallelism in one page: which rows does each GPU see, and does the model still learn?

    python -m simgpu run --devices 4 examples/data_parallel_tutorial.py
    python examples/data_parallel_tutorial.py                              # real GPUs, or the CPU

The model says the size of what it is given, so the first part prints one line per replica and one
line for the whole batch. The second part trains the same model, on all devices at once.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dataparallel import DataParallel

FEATURES, OUTPUTS = 5, 2
ROWS, BATCH = 100, 30
EPOCHS = 5


class RandomDataset(Dataset[torch.Tensor]):
    """Rows of random numbers."""

    def __init__(self, rows: int, features: int) -> None:
        self.rows = torch.randn(rows, features)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class Model(nn.Module):
    """A linear layer that reports what went through it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(FEATURES, OUTPUTS)
        self.talks = True

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        outputs = self.fc(rows)
        if self.talks:
            say(f"\tIn Model: input size {rows.size()} output size {outputs.size()}")
        return outputs


def say(line: str) -> None:
    """Write a line in one piece: replicas talk at the same time."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def devices() -> list[torch.device]:
    """Return the GPUs of this process, real or simulated, or else the CPU."""
    kind = torch.accelerator.current_accelerator()
    if kind is None or not torch.accelerator.is_available():
        return [torch.device("cpu")]
    return [torch.device(kind.type, index) for index in range(torch.accelerator.device_count())]


def main() -> None:
    torch.manual_seed(0)
    gpus = devices()
    model: nn.Module = Model()
    talker = model
    if len(gpus) > 1:
        say(f"Let's use {len(gpus)} GPUs!")
        model = DataParallel(model, device_ids=gpus)
    model.to(gpus[0])

    loader = DataLoader(RandomDataset(ROWS, FEATURES), batch_size=BATCH, shuffle=True)
    for batch in loader:
        rows = batch.to(gpus[0])
        outputs = model(rows)
        say(f"Outside: input size {rows.size()} output_size {outputs.size()}")

    talker.talks = False
    truth = torch.randn(FEATURES, OUTPUTS, device=gpus[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    say(f"Training on {len(gpus)} x {gpus[0].type}")
    for epoch in range(EPOCHS):
        total = 0.0
        for batch in loader:
            rows = batch.to(gpus[0])
            loss = nn.functional.mse_loss(model(rows), rows @ truth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        say(f"\tepoch {epoch + 1}: loss {total / ROWS:.4f}")


if __name__ == "__main__":
    main()
