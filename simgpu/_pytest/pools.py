"""Where a session takes its devices from: simulated ones, or real GPUs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import pytest

from simgpu._pytest.gpu_groups import DEFAULT_SIZE, Worker, group_of

if TYPE_CHECKING:
    import torch


DEFAULT_COUNT = 8
MAX_COUNT = 64

# Where an NVIDIA or AMD driver shows itself: lets the header answer without importing torch.
DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", r"C:\Windows\System32\nvcuda.dll")


class Pool(Protocol):
    """The devices of a session, and how one test borrows some of them."""

    count: int
    distinct: bool

    def describe(self) -> str:
        """Return the words of the header line."""

    def lend(self, count: int) -> contextlib.AbstractContextManager[list[torch.device]]:
        """Give `count` devices in a fresh state for the length of one test."""


class SimulatedPool:
    """`count` simulated GPUs, made anew for each test."""

    distinct = True

    def __init__(self, count: int) -> None:
        self.count = count

    def describe(self) -> str:
        return f"{plural(self.count, 'simulated GPU')} (simgpu)"

    @contextlib.contextmanager
    def lend(self, count: int) -> Iterator[list[torch.device]]:
        import torch

        import simgpu

        with simgpu.devices(count) as devices:
            # The devices are seeded; torch.manual_seed would format the stack for every backend.
            torch.default_generator.manual_seed(0)
            yield list(devices)


class CudaPool:
    """Real GPUs by ordinal; the same ordinal several times means an oversubscribed GPU.

    `seed` is that of every test, other for each worker; `sharers` processes use these GPUs, each
    with its part of the memory.
    """

    def __init__(self, ordinals: Sequence[int], seed: int = 0, sharers: int = 1) -> None:
        self.ordinals = tuple(ordinals)
        self.seed = seed
        self.sharers = sharers
        self.count = len(self.ordinals)
        self.distinct = len(set(self.ordinals)) == self.count

    def describe(self) -> str:
        if self.distinct:
            return f"{plural(self.count, 'real GPU')} (cuda)"
        return (
            f"{plural(self.count, 'slot')} on cuda:{self.ordinals[0]} (oversubscribed: real "
            "kernels, streams and reductions, but no copies between GPUs)"
        )

    @contextlib.contextmanager
    def lend(self, count: int) -> Iterator[list[torch.device]]:
        import torch

        devices = [torch.device("cuda", ordinal) for ordinal in self.ordinals[:count]]
        torch.cuda.set_device(devices[0])
        torch.manual_seed(self.seed)
        for device in set(devices):
            if self.sharers > 1:
                torch.cuda.set_per_process_memory_fraction(1 / self.sharers, device)
            torch.cuda.reset_peak_memory_stats(device)
        try:
            yield devices
        finally:
            for device in set(devices):
                torch.cuda.synchronize(device)
            torch.cuda.empty_cache()


def gpu_count() -> int:
    """Return the number of real GPUs that torch can use here."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_pool(
    kind: str,
    count: int | None,
    oversubscribe: bool,
    per_worker: int | None = None,
    worker: Worker | None = None,
) -> Pool:
    """Return the pool that the options ask for, in a worker of pytest-xdist its own.

    Raises ``pytest.UsageError`` where they cannot be met, saying what there is.
    """
    if per_worker is not None and (kind == "simgpu" or oversubscribe):
        raise pytest.UsageError(
            "--gpus-per-worker divides real GPUs among workers: it cannot be combined with "
            f"{'--oversubscribe' if oversubscribe else '--devices simgpu'}"
        )
    if per_worker is not None and count is not None and count > per_worker:
        raise pytest.UsageError(
            f"--device-count {count} asks for more than --gpus-per-worker {per_worker} gives"
        )
    if oversubscribe:
        if kind == "simgpu":
            raise pytest.UsageError(
                "--oversubscribe puts several slots on one real GPU: it cannot be combined with "
                "--devices simgpu, which has as many devices as --device-count asks for"
            )
        if gpu_count() == 0:
            raise pytest.UsageError("--oversubscribe needs a real GPU, and torch finds none here")
        alone = worker or Worker(0, 1)
        return CudaPool([0] * (count or DEFAULT_COUNT), alone.index, alone.count)
    if kind == "simgpu":
        return SimulatedPool(count or DEFAULT_COUNT)
    here = gpu_count()
    if per_worker is not None and per_worker > here:
        raise pytest.UsageError(
            f"--gpus-per-worker {per_worker} asks for more than the {plural(here, 'GPU')} here"
        )
    if kind == "auto" and here < 2 and per_worker is None:
        return SimulatedPool(count or DEFAULT_COUNT)
    if here == 0:
        raise pytest.UsageError(
            "--devices cuda needs a real GPU, and torch finds none here; "
            "--devices simgpu runs the same tests on simulated ones"
        )
    if kind == "cuda" and count is not None and count > here:
        raise pytest.UsageError(
            f"--device-count {count} asks for more than the {plural(here, 'GPU')} here; "
            "--oversubscribe puts any number of slots on cuda:0"
        )
    if worker is None:
        return CudaPool(range(min(count or DEFAULT_COUNT, here)))
    group = group_of(worker, here, group_size(count, per_worker, here))
    return CudaPool(group.ordinals[:count], worker.index, group.sharers)


def group_size(count: int | None, per_worker: int | None, here: int) -> int:
    return min(per_worker or count or DEFAULT_SIZE, here)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
