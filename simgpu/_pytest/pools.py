"""Pools: where a session takes its devices from. Here real GPUs; `simulated_pool` has the others.

Another kind of device is another class with the three members of :class:`Pool`, and one more line
in :func:`simgpu._pytest.choose.choose_pool`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from simgpu._counting import plural

if TYPE_CHECKING:
    import torch


Scope = Literal["session", "module", "function"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # from the widest


class Pool(Protocol):
    """The devices of a session, and how one test borrows some of them."""

    count: int
    distinct: bool

    def describe(self) -> str:
        """Return the words of the header line."""

    def lend(
        self, count: int, scope: Scope = "function"
    ) -> contextlib.AbstractContextManager[list[torch.device]]:
        """Give `count` devices in a fresh state for the length of a test, module or session."""


def fixture_name(scope: Scope) -> str:
    """Return the fixture that lends devices for this long."""
    return "devices" if scope == "function" else f"{scope}_devices"


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
    def lend(self, count: int, scope: Scope = "function") -> Iterator[list[torch.device]]:
        import torch

        devices = [torch.device("cuda", ordinal) for ordinal in self.ordinals[:count]]
        torch.cuda.init()  # type: ignore[no-untyped-call]  # counters of memory need it
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
