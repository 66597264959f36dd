"""Where a session takes its devices from: simulated ones, those of --as-cuda, real GPUs.

Another kind of device is another class with the three members of :class:`Pool`, and one more line
in :func:`simgpu._pytest.choose.choose_pool`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


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


class AsCudaPool:
    """The simulated devices of a session, by the name of CUDA; each test has the first of them."""

    distinct = True

    def __init__(self, count: int) -> None:
        self.count = count

    def describe(self) -> str:
        return f"{plural(self.count, 'simulated GPU')} (simgpu, as cuda)"

    @contextlib.contextmanager
    def lend(self, count: int) -> Iterator[list[torch.device]]:
        import torch

        from simgpu._runtime import world

        devices = [torch.device("cuda", index) for index in range(count)]
        with world.narrowed(count):
            torch.cuda.set_device(0)
            torch.manual_seed(0)
            for device in devices:
                torch.cuda.reset_peak_memory_stats(device)
            yield devices


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


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
