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

from clock_models import GPT2, Bert, Translator, resnet50, resnext29  # noqa: E402
from clock_runs import (  # noqa: E402
    data_parallel,
    distributed,
    images,
    one_adapter,
    sentences,
    texts,
)

from simgpu._config.gpus import Model, find  # noqa: E402

KNEE = 0.9  # of what each GPU does where there are fewer; beyond the knee all do less


def _gpu(name: str, flops: float, memory: float, nvlink: float) -> Model:
    """A GPU by its data sheet that simgpu has no model of: PCIe 3.0 with 16 lanes."""
    rates = {"peak_flops": {"fp32": int(flops)}, "memory_bandwidth": int(memory)}
    links = {"nvlink_bandwidth": int(nvlink), "pcie_bandwidth": 32_000_000_000}
    return dataclasses.replace(find("T4"), key=name, name=name, **rates, **links)


TITAN_RTX = _gpu("TITAN RTX", 16.3e12, 672e9, 100e9)
GTX_1080_TI = _gpu("GTX 1080 Ti", 11.34e12, 484e9, 0)
GTX_1080 = _gpu("GTX 1080", 8.87e12, 320e9, 0)

DLPERF = (1, 4, 8, 16, 32)  # GPUs of its rows


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
    per_gpu: int = 0
    """Images or texts of a step on one GPU, where the publication gives them per second."""
    gpus: Sequence[int] = ()
    """How many there are in each row, if so."""
    unit: str = "images"


def _resnets(model: str, rates: Sequence[tuple[int, str, float]]) -> list[Row]:
    def ours(count: int, topology: str) -> Callable[[], float]:
        return lambda: distributed(model, topology, count, resnet50, images(32))

    return [
        Row(f"{count} x {model}, {topology}", 32 * count / rate, ours(count, topology))
        for count, topology, rate in rates
    ]


def _machines(rates: Sequence[float], per_gpu: int, ours: Callable[..., float]) -> list[Row]:
    """Rows of DLPerf: 1, 4 and 8 GPUs of one machine, then two and four machines."""

    def row(count: int, rate: float) -> Row:
        machines = -(-count // 8)
        links = one_adapter(machines, "V100", 12.5e9)
        return Row(
            f"{count} x V100, {machines} machine{'s' * (machines > 1)}",
            per_gpu * count / rate,
            lambda: ours("V100", links, count),
        )

    return [row(count, rate) for count, rate in zip(DLPERF, rates, strict=True)]


def _resnet_128(model: str, links: Any, count: int) -> float:
    return distributed(model, links, count, resnet50, images(128))


def _bert(batch: int) -> Callable[..., float]:
    """All gradients are summed at once after the backward pass: its buckets hold a gigabyte."""

    def ours(model: str, links: Any, count: int) -> float:
        return distributed(model, links, count, Bert, texts(batch, 128), bucket_cap_mb=1000)

    return ours


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
        per_gpu=32,
        gpus=(1, 2, 4, 8),
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
        per_gpu=32,
        gpus=(1, 2, 4, 8),
    ),
    Table(
        "ResNet-50, DistributedDataParallel, V100, up to 4 machines",
        "github.com/Oneflow-Inc/DLPerf, PyTorch/resnet50v1.5: FP32, DALI, worker=48",
        "128 images per GPU, float32; machines of 8 with one adapter of 100 Gbit/s.",
        _machines((350.66, 1306.49, 2707.42, 5193.09, 10032.72), 128, _resnet_128),
        per_gpu=128,
        gpus=DLPERF,
    ),
    *(
        Table(
            f"BERT-base, batch {batch}, DistributedDataParallel, V100, up to 4 machines",
            "github.com/Oneflow-Inc/DLPerf, NVIDIADeepLearningExamples/PyTorch/BERT: FP32",
            "128 tokens each, machines as above; taken: SGD for FusedAdam, no dropout, and "
            "PyTorch's wrapper with buckets of a gigabyte for apex's, message_size=250000000.",
            _machines(rates, batch, _bert(batch)),
            per_gpu=batch,
            gpus=DLPERF,
            unit="texts",
        )
        for batch, rates in {
            32: (119.6, 457.72, 921.32, 1499.4, 2885.81),
            48: (121.94, 464.66, 928.01, 1584.32, 3039.3),
        }.items()
    ),
    Table(
        "ResNet-50, DistributedDataParallel, P100",
        "github.com/pytorch/pytorch/pull/4870: 0.162 s",
        "32 images per GPU, 8 GPUs in one machine; their links are not given; assumed: pcie.",
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
        "50,000 images of 32 x 32; copies by PCIe, which is assumed.",
        _resnexts(),
    ),
    Table(
        "Translation with LSTMs, DataParallel, GTX 1080",
        "github.com/OpenNMT/OpenNMT-py/issues/89: seconds of an epoch",
        "The length of the sentences is not given; assumed: 20 words of 10,000. Times are divided "
        "by that of the first row.",
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


def _knee(table: Table, seconds: Sequence[float]) -> str:
    """From how many GPUs on each of them does less than nine tenths of what it did with fewer."""
    for at in range(1, len(seconds)):
        if min(seconds[at:]) * KNEE > max(seconds[:at]):
            return f"from {table.gpus[at]} GPUs on"
    return "none"


def show(table: Table) -> None:
    """Print a table in Markdown."""
    print(f"\n**{table.name}**. Source: {table.source}. {table.note}\n", flush=True)
    ours = [row.ours() for row in table.rows]
    theirs = [row.theirs for row in table.rows]
    unit = "part of the first row" if table.relative else "ms per step"
    scale, digits = (1.0, 2) if table.relative else (1e3, 1)
    knees = [_knee(table, column) for column in (ours, theirs)] if table.gpus else []
    if table.gpus:
        unit, scale, digits = f"{table.unit} per second", 1.0, 0
        ours, theirs = (
            [table.per_gpu * n / each for n, each in zip(table.gpus, column, strict=True)]
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
    if knees:
        print(f"Knee: ours {knees[0]}, theirs {knees[1]}.", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="WORD")
    only = parser.parse_args().only.lower()
    for each in TABLES:
        if only in each.name.lower():
            show(each)
