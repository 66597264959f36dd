"""Step times that others have published for data parallelism, next to those of `simgpu.clock`.

    python benchmarks/clock.py                  # all tables, in Markdown: some minutes
    python benchmarks/clock.py --only gpt2      # those with this word in their name

Networks and batches are of the published sizes; kernels are not computed (`without_values`), which
an estimate does not need. Nothing is fitted to these numbers. What a publication does not say is
said under its table.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import without_values

without_values.leave_out_values()

import torch  # noqa: E402
from clock_models import GPT2, Translator, resnet50, resnext29  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import simgpu  # noqa: E402
from simgpu._models.gpus import Model, find  # noqa: E402

STEPS = 3


def _gpu(name: str, flops: float, memory: float, nvlink: float) -> Model:
    """A GPU by its data sheet that simgpu has no model of: PCIe 3.0 with 16 lanes."""
    rates = {"peak_flops": {"fp32": int(flops)}, "memory_bandwidth": int(memory)}
    links = {"nvlink_bandwidth": int(nvlink), "pcie_bandwidth": 32_000_000_000}
    return dataclasses.replace(find("T4"), key=name, name=name, **rates, **links)


TITAN_RTX = _gpu("TITAN RTX", 16.3e12, 672e9, 100e9)
GTX_1080_TI = _gpu("GTX 1080 Ti", 11.34e12, 484e9, 0)
GTX_1080 = _gpu("GTX 1080", 8.87e12, 320e9, 0)


@dataclass(frozen=True)
class Row:
    """One published number: seconds, and what to run for ours."""

    setting: str
    theirs: float
    ours: Callable[[], float]


@dataclass(frozen=True)
class Table:
    """What somebody has published; with `relative`, times are parts of that of the first row."""

    name: str
    source: str
    note: str
    rows: Sequence[Row]
    relative: bool = False
    images: Sequence[int] = ()
    """Of a step of each row, where the publication tells images per second."""


def _steps(loss: Callable[[], torch.Tensor], parameters: Any, after: Callable[[], Any]) -> None:
    optimizer = torch.optim.SGD(parameters, 1e-4)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        after()


def data_parallel(
    model: Any, topology: Any, count: int, make: Callable[[], Any], batch: Callable[[Any], Any]
) -> float:
    """Seconds of a step of torch.nn.DataParallel; `batch` makes a loss of the network."""
    with simgpu.as_cuda(count, memory="80GiB"), simgpu.clock(model, topology) as estimate:
        net = make().to("cuda:0")
        wrapped = torch.nn.DataParallel(net) if count > 1 else net
        _steps(batch(wrapped), net.parameters(), torch.cuda.synchronize)
        return float(estimate.summary().step_seconds or math.nan)


def distributed(
    model: Any, topology: Any, count: int, make: Callable[[], Any], batch: Callable[[Any], Any]
) -> float:
    """Seconds of a step of DistributedDataParallel with one rank for each GPU."""

    def rank(number: int) -> None:
        net = make().to(f"cuda:{number}")
        wrapped = DistributedDataParallel(net, device_ids=[number])
        _steps(batch(wrapped), net.parameters(), torch.cuda.synchronize)

    with simgpu.as_cuda(count, memory="80GiB"), simgpu.clock(model, topology) as estimate:
        simgpu.ranks(count, rank)
        return float(estimate.summary().step_seconds or math.nan)


def images(count: int, size: int = 224) -> Callable[[Any], Callable[[], torch.Tensor]]:
    """Batches of so many square images and their loss."""

    def batch(net: Any) -> Callable[[], torch.Tensor]:
        device = next(net.parameters()).device
        x = torch.empty(count, 3, size, size, device=device)
        y = torch.zeros(count, dtype=torch.long, device=device)
        return lambda: F.cross_entropy(net(x), y)

    return batch


def texts(count: int) -> Callable[[Any], Callable[[], torch.Tensor]]:
    """Batches of so many texts of 1024 tokens; the network returns its loss."""

    def batch(net: Any) -> Callable[[], torch.Tensor]:
        tokens = torch.zeros(count, 1024, dtype=torch.long, device=next(net.parameters()).device)
        return lambda: net(tokens).mean()

    return batch


def sentences(count: int, length: int = 20) -> Callable[[Any], Callable[[], torch.Tensor]]:
    """Batches of so many pairs of sentences; the words are chosen in parallel, too."""

    def batch(net: Any) -> Callable[[], torch.Tensor]:
        inner = net.module if isinstance(net, torch.nn.DataParallel) else net
        choose = inner.generator if inner is net else torch.nn.DataParallel(inner.generator)
        words = torch.zeros(count, length, dtype=torch.long, device="cuda:0")

        def loss() -> torch.Tensor:
            return F.cross_entropy(choose(net(words, words).flatten(0, 1)), words.flatten())

        return loss

    return batch


def _resnets(model: str, rates: Sequence[tuple[int, str, float]]) -> list[Row]:
    def ours(count: int, topology: str) -> Callable[[], float]:
        return lambda: distributed(model, topology, count, resnet50, images(32))

    return [
        Row(f"{count} x {model}, {topology}", 32 * count / rate, ours(count, topology))
        for count, topology, rate in rates
    ]


def _gpt2() -> list[Row]:
    def both(topology: str) -> Callable[[], float]:
        return lambda: distributed(TITAN_RTX, topology, 2, GPT2, texts(4))

    def dp() -> float:
        return data_parallel(TITAN_RTX, "nvlink", 2, GPT2, texts(8))

    return [
        Row("DataParallel, nvlink", 110.5948 / 200, dp),
        Row("DistributedDataParallel, nvlink", 101.9003 / 200, both("nvlink")),
        Row("DistributedDataParallel, pcie", 131.4367 / 200, both("pcie")),
    ]


def _translators() -> list[Row]:
    epochs = {1: (43, 35, 32, 30), 2: (78, 51, 43, 40), 3: (94, 60, 50, 44)}

    def ours(count: int, size: int) -> Callable[[], float]:
        return lambda: data_parallel(GTX_1080, "pcie", count, Translator, sentences(size)) / size

    return [
        Row(f"{count} x GTX 1080, batch {size}", float(seconds), ours(count, size))
        for count, row in epochs.items()
        for size, seconds in zip((64, 128, 192, 248), row, strict=True)
    ]


def _resnexts() -> list[Row]:
    def ours(count: int, size: int) -> Callable[[], float]:
        batch = images(size, 32)
        return lambda: data_parallel(GTX_1080_TI, "pcie", count, resnext29, batch)

    return [
        Row("1 x GTX 1080 Ti, batch 20", 9 * 60 / 50000 * 20, ours(1, 20)),
        Row("4 x GTX 1080 Ti, batch 128", 4.5 * 60 / 50000 * 128, ours(4, 128)),
    ]


TABLES = [
    Table(
        "ResNet-50, DistributedDataParallel, V100",
        "github.com/mvsjober/ml-benchmarks, results.md: DDP, synthetic, puhti, 2023-09-28",
        "32 images per GPU, float32; machines of 4 GPUs, so that 8 are two machines.",
        _resnets(
            "V100",
            [
                (1, "nvlink", 329.27),
                (2, "nvlink", 520.80),
                (4, "nvlink", 1249.31),
                (8, "2x4", 2465.86),
            ],
        ),
        images=(32, 64, 128, 256),
    ),
    Table(
        "ResNet-50, DistributedDataParallel, A100",
        "github.com/mvsjober/ml-benchmarks, results.md: DDP, synthetic, mahti, 2023-09-28",
        "As above; convolutions take TF32, as by PyTorch's default.",
        _resnets(
            "A100",
            [
                (1, "nvlink", 784.38),
                (2, "nvlink", 1495.75),
                (4, "nvlink", 3081.61),
                (8, "2x4", 5862.00),
            ],
        ),
        images=(32, 64, 128, 256),
    ),
    Table(
        "ResNet-50, DistributedDataParallel, P100",
        "github.com/pytorch/pytorch/pull/4870: 0.162 s",
        "32 images per GPU, 8 GPUs in one machine; how they are joined is not said, taken: pcie.",
        [
            Row(
                "8 x P100, pcie",
                0.162,
                lambda: distributed("P100", "pcie", 8, resnet50, images(32)),
            )
        ],
    ),
    Table(
        "GPT-2, DataParallel and DistributedDataParallel, 2 x TITAN RTX",
        "huggingface.co/docs/transformers, perf_train_gpu_many: 200 steps of run_clm.py",
        "4 texts per GPU, taken: 1024 tokens each, SGD for AdamW, no dropout.",
        _gpt2(),
    ),
    Table(
        "ResNeXt-29 (16 groups), DataParallel, GTX 1080 Ti",
        "github.com/prlz77/ResNeXt.pytorch/issues/13: 9 and 4.5 minutes for an epoch of CIFAR",
        "50,000 images of 32 x 32; copies by PCIe, which is not said.",
        _resnexts(),
    ),
    Table(
        "Translation with LSTMs, DataParallel, GTX 1080",
        "github.com/OpenNMT/OpenNMT-py/issues/89: seconds of an epoch",
        "How long the sentences are is not said: taken, 20 words of 10,000. So times are shown as "
        "parts of that of the first row.",
        _translators(),
        relative=True,
    ),
]


def _ordered(theirs: Sequence[float], ours: Sequence[float]) -> tuple[int, int]:
    """How many pairs of rows are in the same order, and how many there are; within 1 % is none."""
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(len(theirs)), 2)
        if abs(math.log(theirs[i] / theirs[j])) > 0.01
    ]
    same = sum((theirs[i] < theirs[j]) == (ours[i] < ours[j]) for i, j in pairs)
    return same, len(pairs)


def show(table: Table) -> None:
    """Print a table in Markdown."""
    print(f"\n**{table.name}**. Source: {table.source}. {table.note}\n", flush=True)
    ours = [row.ours() for row in table.rows]
    theirs = [row.theirs for row in table.rows]
    unit = "part of the first row" if table.relative else "ms per step"
    scale, digits = (1.0, 2) if table.relative else (1e3, 1)
    if table.images:
        unit, scale, digits = "images per second", 1.0, 0
        ours, theirs = (
            [count / each for count, each in zip(table.images, column, strict=True)]
            for column in (ours, theirs)
        )
    print(f"| setting | ours (estimate), {unit} | theirs, {unit} | ratio |")
    print("|---|---|---|---|")
    if table.relative:
        ours, theirs = ([each / column[0] for each in column] for column in (ours, theirs))
    for row, our, their in zip(table.rows, ours, theirs, strict=True):
        cells = f"{our * scale:.{digits}f} | {their * scale:.{digits}f} | {our / their:.2f}"
        print(f"| {row.setting} | {cells} |")
    if len(ours) > 1:
        same, count = _ordered(theirs, ours)
        print(f"\nPairs of rows in the same order: {same} of {count}.", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="WORD")
    only = parser.parse_args().only.lower()
    for each in TABLES:
        if only in each.name.lower():
            show(each)
