"""`simgpu.enable(n)` and `simgpu.disable()`: devices without a `with` block, for a notebook."""

from __future__ import annotations

import contextlib
import threading

import torch

from simgpu._backend import devices
from simgpu._cuda import as_cuda as cuda
from simgpu._models.gpus import Names
from simgpu.errors import DeviceBlockError, DevicesActiveError

_lock = threading.Lock()
# How the devices were made, and what ends them; None while there are none of this file.
_enabled: tuple[str, contextlib.ExitStack] | None = None


def enable(
    count: int,
    *,
    memory: devices.Memory = None,
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
        call = f"simgpu.enable({devices.describe_arguments(count, memory, model, rng)}"
        call += (", as_cuda=True" if as_cuda else "") + (", force=True" if force else "") + ")"
        with contextlib.ExitStack() as ends:
            if as_cuda:
                made = cuda.start(count, memory, model, rng, force, ends)
            else:
                made = devices.start(count, memory, model, rng, ends)
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
