"""What a session asks for: the plugin's command-line options, read into one value."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import pytest

from simgpu._pytest.gpu_groups import DEFAULT_SIZE, Worker

DEFAULT_COUNT = 8
MAX_COUNT = 64


@dataclass(frozen=True)
class DeviceOptions:
    """The options of one session, and which worker of pytest-xdist reads them."""

    kind: str = "auto"
    """"simgpu", "cuda", or "auto": real GPUs where there are two."""
    count: int | None = None
    oversubscribe: bool = False
    """Many slots that all name cuda:0."""
    per_worker: int | None = None
    """Real GPUs for each worker of pytest-xdist."""
    worker: Worker | None = None
    """This process, if it is a worker."""
    as_cuda: bool = False

    @property
    def count_or_default(self) -> int:
        return self.count or DEFAULT_COUNT


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("simgpu", "devices of the `devices` fixture")

    def add(name: str, **arguments: Any) -> None:
        # The suite's own options are in the same namespace, perhaps as "devices" or "as_cuda".
        group.addoption(name, dest=f"simgpu_{name[2:].replace('-', '_')}", **arguments)

    add(
        "--devices",
        choices=("auto", "simgpu", "cuda"),
        default="auto",
        help="real GPUs, simulated ones, or (auto, the default) real ones where there are two",
    )
    add(
        "--device-count",
        type=int,
        metavar="N",
        help=f"how many devices a test can have (default: {DEFAULT_COUNT}, or the GPUs here)",
    )
    add(
        "--oversubscribe",
        action="store_true",
        help="N slots that all name cuda:0, so that one real GPU runs multi-device tests",
    )
    add(
        "--gpus-per-worker",
        type=int,
        metavar="N",
        help="real GPUs for each worker of pytest-xdist (default: "
        f"--device-count, or {DEFAULT_SIZE})",
    )
    add(
        "--as-cuda",
        action="store_true",
        help="let simulated devices go by the name of CUDA, for suites written for CUDA",
    )


def read_options(config: pytest.Config) -> DeviceOptions:
    # What pytest-xdist tells each of its workers; nothing in the process that starts them.
    worker_input = getattr(config, "workerinput", None)
    worker = None
    if worker_input:
        index = int(worker_input["workerid"].lstrip("gw"))
        worker = Worker(index, worker_input["workercount"])
    return options_in(config.option, worker)


def options_in(namespace: argparse.Namespace, worker: Worker | None = None) -> DeviceOptions:
    return DeviceOptions(
        kind=namespace.simgpu_devices,
        count=namespace.simgpu_device_count,
        oversubscribe=namespace.simgpu_oversubscribe,
        per_worker=namespace.simgpu_gpus_per_worker,
        worker=worker,
        as_cuda=namespace.simgpu_as_cuda,
    )


def check_numbers(options: DeviceOptions) -> None:
    """Raise ``pytest.UsageError`` for a number that no machine could meet."""
    count, per_worker = options.count, options.per_worker
    if count is not None and not 1 <= count <= MAX_COUNT:
        raise pytest.UsageError(f"--device-count must be from 1 to {MAX_COUNT}, not {count}")
    if per_worker is not None and per_worker < 1:
        raise pytest.UsageError(f"--gpus-per-worker must be 1 or more, not {per_worker}")
