"""Devices of a whole process: SIMGPU_DEVICE_COUNT and others, `simgpu.enable`, `simgpu.disable`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping

import torch

from simgpu._backend import install
from simgpu._config import options
from simgpu._config.gpus import Names
from simgpu._config.options import DeviceOptions
from simgpu._core import world
from simgpu._devices import block
from simgpu.errors import DeviceBlockError, DevicesActiveError


def start_process_devices(said_by: Mapping[str, str] | None = None) -> None:
    """Make the devices that SIMGPU_DEVICE_COUNT asks for, for the rest of the process.

    Does nothing where they have been made already, as `import torch` does by itself wherever
    simgpu is installed. SIMGPU_DEVICE_MEMORY is the memory of each, as in `simgpu.devices`, with
    commas between the sizes of several, and SIMGPU_MODEL which GPU each is, likewise; SIMGPU_RNG
    chooses their random number generator. With SIMGPU_AS_CUDA, they are used as CUDA.

    Raises ValueError where a variable makes no sense; its text begins with the variable, or with
    the option of a command that has set it: by argument of `simgpu.devices`, `said_by` has those.
    """
    count = options.device_count()
    if count is None or world.current_world() is not None:
        return
    asked = DeviceOptions.of_environment(count, said_by or {})
    named = options.as_cuda()
    install.install()
    entered = world.enter(asked)
    entered.hint = (
        f"{options.COUNT} or `simgpu run` made them for the whole process: use these, or start "
        "it without"
    )
    entered.more = f"; {options.COUNT}, or --devices of `simgpu run`, is their number"
    if named:
        from simgpu._devices import block

        block.start_process(force=named == "force")


# `simgpu.enable(n)` and `simgpu.disable()`: devices without a `with` block, for a notebook.

_lock = threading.Lock()
# How the devices were made, and what ends them; None while there are none of this file.
_enabled: tuple[str, contextlib.ExitStack] | None = None


def enable(
    count: int,
    *,
    memory: options.Memory = None,
    model: Names = None,
    rng: str = "cuda",
    as_cuda: bool = False,
    force: bool = False,
) -> list[torch.device]:
    """Have `count` fresh simulated GPUs from now on, until `simgpu.disable()`.

    For a notebook or the interactive interpreter, before or after `import torch`. In a program,
    `with simgpu.devices(n)` ends its devices even where an error is raised.

    Args:
        count, memory, model, rng: as in `simgpu.devices`.
        as_cuda: the devices go by the name of CUDA, as in `simgpu.as_cuda`.
        force: as in `simgpu.as_cuda`.

    Returns the devices, ``simgpu:0`` (or ``cuda:0``) and so on.

    Raises:
        DevicesActiveError: there are simulated devices already.
        ValueError: `force` without `as_cuda`.
        TypeError, ValueError, BackendSlotTakenError, RealCudaError: as in `simgpu.as_cuda`.
    """
    global _enabled
    if force and not as_cuda:
        raise ValueError("force=True needs as_cuda=True: it takes the name of real CUDA devices")
    with _lock:
        if _enabled is not None:
            raise DevicesActiveError(
                f"{_enabled[0]} has made devices already: call simgpu.disable() first"
            )
        call = f"simgpu.enable({block.describe_arguments(count, memory, model, rng)}"
        call += (", as_cuda=True" if as_cuda else "") + (", force=True" if force else "") + ")"
        with contextlib.ExitStack() as ends:
            asked = DeviceOptions.of(count, memory, model, rng)
            if as_cuda:
                made = block.start_as_cuda(asked, force, ends)
            else:
                made = block.start_devices(asked, ends)
            _enabled = call, ends.pop_all()
        return made


def disable() -> None:
    """End the devices of `simgpu.enable`; their tensors keep their values and can be moved to host.

    Raises DeviceBlockError where there are none of `simgpu.enable`.
    """
    global _enabled
    with _lock:
        if _enabled is None:
            raise DeviceBlockError(
                "simgpu.disable() has nothing to end: it ends the devices of simgpu.enable(n), "
                "while those of `with simgpu.devices(n)` end with their block and those of "
                "SIMGPU_DEVICE_COUNT with the process"
            )
        (_, ends), _enabled = _enabled, None
        ends.close()
