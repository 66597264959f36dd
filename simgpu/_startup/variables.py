"""The environment variables that give a process simulated devices, and how they are read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from simgpu._naming import CPU_KERNELS, MAX_DEVICES
from simgpu._runtime.rngs import RNGS, check_rng

COUNT = "SIMGPU_DEVICE_COUNT"
MEMORY = "SIMGPU_DEVICE_MEMORY"
MODEL = "SIMGPU_MODEL"
RNG = "SIMGPU_RNG"
AS_CUDA = "SIMGPU_AS_CUDA"

NAMES = (COUNT, MEMORY, MODEL, RNG, AS_CUDA)
SETTINGS = (CPU_KERNELS,)  # which give a process no devices


def device_count() -> int | None:
    """Return how many devices the process is to have; None where nothing is said of it.

    Raises ValueError where the variable is no such number.
    """
    value = os.environ.get(COUNT, "")
    if not value:
        return None
    if not value.isdecimal() or not 1 <= int(value) <= MAX_DEVICES:
        raise ValueError(f"{COUNT}={value!r} must be a number from 1 to {MAX_DEVICES}")
    return int(value)


def device_memory() -> str | list[str] | None:
    """Return what each device has, or a list with one entry per device; None if not told."""
    return by_device(os.environ.get(MEMORY))


def device_model() -> str | list[str] | None:
    """Return which GPU each device is, or a list with one entry per device; None if not told."""
    return by_device(os.environ.get(MODEL))


def device_rng() -> str:
    """Return what draws random numbers on the devices: CUDA's generator, if not told.

    Raises ValueError where there is no such thing.
    """
    with told_by(RNG):
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
def told_by(name: str) -> Iterator[None]:
    """Let a ValueError in the block begin with the variable whose value it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def tell_of_devices() -> bool:
    """Return whether one of them says of which sort simulated devices are."""
    return any(os.environ.get(name) for name in (MEMORY, MODEL, RNG))


def by_device(text: str | None) -> str | list[str] | None:
    """Return what a text says of all devices, or of each where it has commas."""
    return text.split(",") if text and "," in text else text or None


def misspelt() -> list[str]:
    """Return the variables that have a name like ours and are none of them, in order."""
    known = {*NAMES, *SETTINGS}
    return sorted(name for name in os.environ if name.startswith("SIMGPU_") and name not in known)


def clear() -> dict[str, str]:
    """Take the variables out of the environment; returns what they were."""
    return {name: os.environ.pop(name) for name in NAMES if name in os.environ}
