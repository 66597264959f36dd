"""`Gpu`: what NVML and nvidia-smi say about one simulated GPU. Needs no torch.

Memory and processes are those of the allocators, utilization that of `simgpu.clock`. The rest are
constants, which docs/nvml.md lists; what a real GPU may lack (fans, ECC counters, MIG) is N/A.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from simgpu._config.gpus import Model, uuid_of

DRIVER = "580.95.05"
CUDA = (13, 0)
CUDA_TEXT = ".".join(map(str, CUDA))
CUDA_NUMBER = CUDA[0] * 1000 + CUDA[1] * 10  # as in cuda.h
TEMPERATURE = 33  # degrees Celsius
IDLE_SHARE = 10  # a GPU draws its power limit divided by this
_WATTS = 300  # the power limit of a model whose data sheet was not found
_KHZ = 1_000_000  # the clock of a model whose clock was not found


class Answer(TypedDict):
    """What a process says about itself; of each device: number, reserved bytes and utilization."""

    pid: int
    name: str
    devices: Sequence[tuple[int, int, int]]


class Process(NamedTuple):
    """A process that has allocated memory on a GPU: what it has reserved there, in bytes."""

    pid: int
    name: str
    used: int


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine, by its number there, which CUDA_VISIBLE_DEVICES does not change."""

    number: int
    model: Model
    total: int
    ask: Callable[[], Sequence[Answer]]
    """Asks all processes of the machine."""

    @property
    def processes(self) -> list[Process]:
        return [
            Process(answer["pid"], answer["name"], used)
            for answer in self.ask()
            for number, used, _ in answer["devices"]
            if number == self.number
        ]

    @property
    def utilization(self) -> int:
        """Percent of the last second of the clock in which it computed."""
        rates = (each for answer in self.ask() for each in answer["devices"])
        return max((rate for number, _, rate in rates if number == self.number), default=0)

    @property
    def uuid(self) -> str:
        return f"GPU-{uuid_of(self.number, self.model)}"

    @property
    def bus_id(self) -> str:
        return f"00000000:{self.number + 1:02X}:00.0"

    @property
    def used(self) -> int:
        return min(self.total, sum(process.used for process in self.processes))

    @property
    def free(self) -> int:
        return self.total - self.used

    @property
    def power_limit(self) -> int:
        """In watts."""
        return self.model.power_limit or _WATTS

    @property
    def power_draw(self) -> int:
        """In watts."""
        return self.power_limit // IDLE_SHARE

    @property
    def energy(self) -> int:
        """Millijoules since the machine was started."""
        return int(self.power_draw * 1000 * time.monotonic())

    @property
    def sm_clock(self) -> int:
        """In MHz."""
        return (self.model.clock_rate or _KHZ) // 1000

    @property
    def memory_clock(self) -> int:
        """In MHz."""
        return (self.model.memory_clock_rate or _KHZ) // 1000


def mib(nbytes: int) -> int:
    return nbytes // 2**20


def gpus_of(machine: Iterable[tuple[int, Model]], ask: Callable[[], Sequence[Answer]]) -> list[Gpu]:
    """The GPUs of a machine, from the memory in bytes and the model of each.

    All processes are asked at most once, when it is asked what they use.
    """
    once = functools.cache(ask)
    return [Gpu(number, model, total, once) for number, (total, model) in enumerate(machine)]


# What `nvidia-smi --query-gpu` knows by name: the unit, and the value; None is N/A.
FIELDS: dict[str, tuple[str, Callable[[Gpu], object]]] = {
    "timestamp": ("", lambda gpu: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "index": ("", lambda gpu: gpu.number),
    "name": ("", lambda gpu: gpu.model.name),
    "uuid": ("", lambda gpu: gpu.uuid),
    "compute_cap": ("", lambda gpu: "{}.{}".format(*gpu.model.compute_capability)),
    "pci.bus_id": ("", lambda gpu: gpu.bus_id),
    "pci.bus": ("", lambda gpu: f"0x{gpu.number + 1:02X}"),
    "memory.total": ("MiB", lambda gpu: mib(gpu.total)),
    "memory.used": ("MiB", lambda gpu: mib(gpu.used)),
    "memory.free": ("MiB", lambda gpu: mib(gpu.free)),
}


def _add(names: str, unit: str, value: Callable[[Gpu], object]) -> None:
    FIELDS.update(dict.fromkeys(names.split(), (unit, value)))


_add("driver_version", "", lambda _: DRIVER)
_add("memory.reserved", "MiB", lambda _: 0)
_add("utilization.gpu utilization.memory", "%", lambda gpu: gpu.utilization)
_add("utilization.encoder utilization.decoder", "%", lambda _: 0)
_add("temperature.gpu", "", lambda _: TEMPERATURE)
_add("power.draw power.draw.average power.draw.instant", "W", lambda gpu: f"{gpu.power_draw:.2f}")
_add(
    "power.limit enforced.power.limit power.default_limit power.max_limit",
    "W",
    lambda gpu: f"{gpu.power_limit:.2f}",
)
for _kind in ("current", "max"):
    _add(f"clocks.{_kind}.graphics clocks.{_kind}.sm", "MHz", lambda gpu: gpu.sm_clock)
    _add(f"clocks.{_kind}.memory", "MHz", lambda gpu: gpu.memory_clock)
_add("fan.speed", "%", lambda _: None)
_add("pstate", "", lambda _: "P0")
_add("compute_mode", "", lambda _: "Default")
_add("persistence_mode power.management", "", lambda _: "Enabled")
_add("display_mode display_active accounting.mode", "", lambda _: "Disabled")
_add("pci.domain", "", lambda _: "0x0000")
_add("pci.device", "", lambda _: "0x00")
_add(
    "serial vbios_version temperature.memory mig.mode.current mig.mode.pending "
    "ecc.mode.current ecc.mode.pending ecc.errors.corrected.volatile.total "
    "ecc.errors.uncorrected.volatile.total pcie.link.gen.current pcie.link.width.current",
    "",
    lambda _: None,
)
