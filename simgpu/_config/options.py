"""`DeviceOptions`: which simulated devices to make, checked in one place for all that make some.

`simgpu.devices`, `as_cuda` and `enable` give it values; environment variables, `simgpu run` and
pytest give it texts. Needs no torch.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simgpu._config.gpus import Model, Names, models_of
from simgpu._util.naming import (
    CPU_KERNELS,
    FULL_TRACE,
    MAX_DEVICES,
    RUN_FOLDER,
    STRICT,
    check_one_for_each_device,
)

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


RNGS = "cuda", "host"
"""CUDA's generator and kernels; or the CPU's, with other numbers on each device."""


def check_rng(rng: str) -> str:
    """Return one of `RNGS`; raises ValueError for anything else."""
    if not isinstance(rng, str) or rng not in RNGS:
        raise ValueError(f"rng must be one of {', '.join(map(repr, RNGS))}, got {rng!r}")
    return rng


class Option(NamedTuple):
    """One row of `OPTIONS`: how the devices are asked to be."""

    variable: str
    """Of the environment."""
    check: Callable[[int, Any], Any]
    """Checks the argument for so many devices; returns what `DeviceOptions` has of it."""
    arguments: dict[str, Any]
    """Of a command's option, as `add_argument` and `addoption` take them."""
    page: str
    """What docs/options.md says of the variable."""
    has_list: bool = True
    """Whether a text may have a value for each device, with commas."""


# By argument of `simgpu.devices`. `simgpu run` has `--NAME` for each, pytest `--device-NAME`.
OPTIONS = {
    "memory": Option(
        "SIMGPU_DEVICE_MEMORY",
        capacities,
        {
            "metavar": "SIZE[,SIZE...]",
            "help": "memory of each simulated device, such as 2GiB or 512MiB; a comma-separated "
            "list has one size per device (default: SIMGPU_DEVICE_MEMORY, the memory of the model, "
            "or 16GiB)",
        },
        "memory of each device, such as `2GiB`; with commas one size per device",
    ),
    "model": Option(
        "SIMGPU_MODEL",
        models_of,
        {
            "metavar": "NAME[,NAME...]",
            "help": "GPU model that each simulated device reports, such as A100 or 'H100 SXM'; a "
            "comma-separated list has one model per device; `simgpu info` prints the known models "
            "(default: SIMGPU_MODEL, or none)",
        },
        "[GPU model](models.md) that each device reports; with commas one per device",
    ),
    "rng": Option(
        "SIMGPU_RNG",
        lambda _, rng: check_rng(rng),
        {
            "choices": RNGS,
            "help": "random number generator of simulated devices: cuda gives the same numbers as "
            "a GPU (default), host uses the CPU's generator",
        },
        "`cuda` (default) or `host`: what draws [random numbers](fidelity.md#random-numbers)",
        has_list=False,
    ),
}
VARIABLES = {name: option.variable for name, option in OPTIONS.items()}

# Options that `simgpu run` and pytest share besides.
ASYNCHRONOUS: dict[str, dict[str, Any]] = {
    "async": {
        "action": "store_true",
        "help": "delay kernels and copies of simulated devices until something waits for them, as "
        "a GPU may; code that forgets to synchronize then reads NaN or old values",
    },
    "async-seed": {
        "type": int,
        "metavar": "SEED",
        "help": "like --async, but in a random order that a GPU may use; SEED selects the order",
    },
}

Memory = int | str | Sequence[int | str] | None
"""Of each device, or one entry per device."""


@dataclass(frozen=True)
class DeviceOptions:
    """Which simulated devices to make; made by `of` and `of_texts`, which check everything."""

    count: int
    memory: tuple[int, ...]
    """Bytes of each device."""
    models: tuple[Model, ...]
    rng: str
    """One of `RNGS`."""

    @classmethod
    def of(
        cls,
        count: int,
        memory: Memory = None,
        model: Names = None,
        rng: str = RNGS[0],
        said_by: Mapping[str, str] | None = None,
    ) -> DeviceOptions:
        """Check the arguments of `simgpu.devices`.

        `said_by` has, for "memory", "model" and "rng", what gave the value: a ValueError about it
        begins with that, such as "SIMGPU_MODEL".
        """
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"device count must be an int from 1 to {MAX_DEVICES}, got {count!r}")
        if not 1 <= count <= MAX_DEVICES:
            raise ValueError(f"device count must be from 1 to {MAX_DEVICES}, got {count}")

        def checked(name: str, value: Any) -> Any:
            with _errors_begin_with((said_by or {}).get(name)):
                return OPTIONS[name].check(count, value)

        models = checked("model", model)
        sizes = [each.total_memory for each in models]
        if memory is not None:
            sizes = checked("memory", memory)
        return cls(count, tuple(sizes), tuple(models), checked("rng", rng))

    @classmethod
    def of_texts(
        cls, count: int, texts: Mapping[str, str], said_by: Mapping[str, str]
    ) -> DeviceOptions:
        """Check texts by argument: of options that `said_by` names, and else of variables."""
        return cls.of(count, **arguments(texts), said_by={**VARIABLES, **said_by})

    @classmethod
    def of_environment(cls, count: int, said_by: Mapping[str, str]) -> DeviceOptions:
        """Check what the variables ask for; `said_by` as in `of`, for those that an option set.

        Each device of a process needs memory, and those of a block may have none.
        """
        texts = variables()
        options = cls.of_texts(count, texts, said_by)
        if not all(options.memory):
            with _errors_begin_with(said_by.get("memory", VARIABLES["memory"])):
                raise ValueError(
                    f"memory={arguments(texts)['memory']!r} leaves the process devices without any "
                    "memory: pass the size that each has, such as '16GiB'; a block of "
                    "simgpu.devices(memory=0) may have none"
                )
        return options


def arguments(texts: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `simgpu.devices` in texts: with commas, memory and model have a list."""
    return {
        name: text.split(",") if "," in text and OPTIONS[name].has_list else text
        for name, text in texts.items()
    }


@contextlib.contextmanager
def _errors_begin_with(name: str | None) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise (ValueError(f"{name}: {error}") if name else error) from None


COUNT = "SIMGPU_DEVICE_COUNT"
AS_CUDA = "SIMGPU_AS_CUDA"
NAMES = (COUNT, *VARIABLES.values(), AS_CUDA)
SETTINGS = (CPU_KERNELS, FULL_TRACE, STRICT, RUN_FOLDER)  # which give a process no devices


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


def variables() -> dict[str, str]:
    """Return the values of the variables that are set, by argument of `simgpu.devices`."""
    return {name: os.environ[key] for name, key in VARIABLES.items() if os.environ.get(key)}


def as_cuda() -> str:
    """Return "1" where the devices go by the name of CUDA, "force" also on real GPUs, "" otherwise.

    Raises ValueError where the variable is neither of these nor "0".
    """
    value = os.environ.get(AS_CUDA, "")
    if value not in ("", "0", "1", "force"):
        raise ValueError(
            f"{AS_CUDA}={value!r} must be 1 (as CUDA devices), force (also where real CUDA is) or 0"
        )
    return value.replace("0", "")


def unknown_variables() -> list[str]:
    """Return the variables that have a name like ours and are none of them, in order."""
    known = {*NAMES, *SETTINGS}
    return sorted(name for name in os.environ if name.startswith("SIMGPU_") and name not in known)


def clear_variables() -> dict[str, str]:
    """Take the variables out of the environment; returns what they were."""
    return {name: os.environ.pop(name) for name in NAMES if name in os.environ}


def set_variables(count: int | str, texts: Mapping[str, str], as_cuda: str) -> None:
    """Make the environment ask for these devices, in place of those that it asks for.

    `texts` has the values by argument of `simgpu.devices`; `as_cuda` is "1", "force" or "".
    """
    clear_variables()
    os.environ[COUNT] = str(count)
    os.environ.update({VARIABLES[name]: text for name, text in texts.items()})
    if as_cuda:
        os.environ[AS_CUDA] = as_cuda
