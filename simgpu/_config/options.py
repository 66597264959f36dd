"""Options for devices: memory, random numbers, environment variables. Needs no torch."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence

from simgpu._util.naming import CPU_KERNELS, FULL_TRACE, MAX_DEVICES, check_one_for_each_device

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_NEGATIVE = "memory={} must not be negative: pass the size of each device, such as '16GiB'"


def _bytes(memory: int | str) -> int:
    """Bytes that a number or a text such as "16GiB" means."""
    if isinstance(memory, str):
        match = re.fullmatch(r"(-?)(\d+(?:\.\d+)?)\s*([A-Za-z]*)", memory.strip())
        if match is None or match[3] not in _UNITS:
            raise ValueError(
                f"memory={memory!r} must be a number of bytes or a number with one of the units "
                f"{', '.join(unit for unit in _UNITS if unit)}, such as '16GiB'"
            )
        if match[1]:
            raise ValueError(_NEGATIVE.format(repr(memory)))
        return int(float(match[2]) * _UNITS[match[3]])
    if isinstance(memory, bool) or not isinstance(memory, int):
        raise TypeError(f"memory must be bytes (int) or a text such as '16GiB', got {memory!r}")
    if memory < 0:
        raise ValueError(_NEGATIVE.format(memory))
    return memory


def capacities(count: int, memory: int | str | Sequence[int | str]) -> list[int]:
    """Return the bytes of each device, from the argument of `simgpu.devices`."""
    if isinstance(memory, (bytes, bytearray)) or not isinstance(memory, Sequence | int | str):
        raise TypeError(
            f"memory must be bytes (int), a text or one of these per device, got {memory!r}"
        )
    if isinstance(memory, (int, str)):
        return [_bytes(memory)] * count
    check_one_for_each_device("memory", memory, count)
    return [_bytes(entry) for entry in memory]


def process_capacities(count: int, memory: str | Sequence[str]) -> list[int]:
    """Return the bytes of each device of a process, which is to have something on all of them."""
    sizes = capacities(count, memory)
    if not all(sizes):
        raise ValueError(
            f"memory={memory!r} leaves the process devices without any memory: pass the size that "
            "each has, such as '16GiB'; a block of simgpu.devices(memory=0) may have none"
        )
    return sizes


# What draws random numbers on simulated devices: CUDA's generator, or the CPU's. Without torch.

RNGS = "cuda", "host"
"""CUDA's generator and kernels; or the CPU's, with other numbers on each device."""


def check_rng(rng: str) -> str:
    """Return one of `RNGS`; raises ValueError for anything else."""
    if not isinstance(rng, str) or rng not in RNGS:
        raise ValueError(f"rng must be one of {', '.join(map(repr, RNGS))}, got {rng!r}")
    return rng


# The environment variables that give a process simulated devices, and how they are read.

COUNT = "SIMGPU_DEVICE_COUNT"
MEMORY = "SIMGPU_DEVICE_MEMORY"
MODEL = "SIMGPU_MODEL"
RNG = "SIMGPU_RNG"
AS_CUDA = "SIMGPU_AS_CUDA"

NAMES = (COUNT, MEMORY, MODEL, RNG, AS_CUDA)
SETTINGS = (CPU_KERNELS, FULL_TRACE)  # which give a process no devices


def device_count() -> int | None:
    """Return how many devices the process is to have; None where no variable sets it.

    Raises ValueError where the variable is no such number.
    """
    value = os.environ.get(COUNT, "")
    if not value:
        return None
    if not value.isdecimal() or not 1 <= int(value) <= MAX_DEVICES:
        raise ValueError(f"{COUNT}={value!r} must be a number from 1 to {MAX_DEVICES}")
    return int(value)


def device_memory() -> str | list[str] | None:
    """Return what each device has, or a list with one entry per device; None if not set."""
    return by_device(os.environ.get(MEMORY))


def device_model() -> str | list[str] | None:
    """Return which GPU each device is, or a list with one entry per device; None if not set."""
    return by_device(os.environ.get(MODEL))


def device_rng() -> str:
    """Return what draws random numbers on the devices: CUDA's generator, if not set.

    Raises ValueError where there is no such thing.
    """
    with prefix_errors(RNG):
        return check_rng(os.environ.get(RNG) or RNGS[0])


def as_cuda() -> str:
    """Return "1" where the devices go by the name of CUDA, "force" also on real GPUs, "" otherwise.

    Raises ValueError where the variable is neither of these nor "0".
    """
    value = os.environ.get(AS_CUDA, "")
    if value not in ("", "0", "1", "force"):
        raise ValueError(
            f"{AS_CUDA}={value!r} must be 1 (by the name of CUDA), force (also where real CUDA is) "
            "or 0"
        )
    return value.replace("0", "")


@contextlib.contextmanager
def prefix_errors(name: str) -> Iterator[None]:
    """Begin a ValueError of the block with the variable whose value it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def tell_of_devices() -> bool:
    """Return whether one of them chooses the properties of simulated devices."""
    return any(os.environ.get(name) for name in (MEMORY, MODEL, RNG))


def by_device(text: str | None) -> str | list[str] | None:
    """Return the value for all devices, or one per device where the text has commas."""
    return text.split(",") if text and "," in text else text or None


def unknown_variables() -> list[str]:
    """Return the variables that have a name like ours and are none of them, in order."""
    known = {*NAMES, *SETTINGS}
    return sorted(name for name in os.environ if name.startswith("SIMGPU_") and name not in known)


def clear_variables() -> dict[str, str]:
    """Take the variables out of the environment; returns what they were."""
    return {name: os.environ.pop(name) for name in NAMES if name in os.environ}
