"""SIMGPU_DEVICE_COUNT and SIMGPU_AS_CUDA: simulated devices for the rest of the process."""

from __future__ import annotations

import os

from simgpu._backend import install
from simgpu._runtime import world

COUNT_VARIABLE = "SIMGPU_DEVICE_COUNT"


def start_process_devices() -> None:
    """Make the devices that SIMGPU_DEVICE_COUNT asks for, for the rest of the process.

    Does nothing where they have been made already, as `import torch` does by itself wherever
    simgpu is installed. With SIMGPU_AS_CUDA, they go by the name of CUDA.
    """
    value = os.environ.get(COUNT_VARIABLE, "")
    if not value or world.device_count():
        return
    if not value.isdecimal():
        raise ValueError(f"{COUNT_VARIABLE}={value!r} must be a number from 1 to 64")
    install.install()
    world.enter(int(value))
    if os.environ.get("SIMGPU_AS_CUDA"):
        from simgpu._cuda import as_cuda

        as_cuda.start_process(force=os.environ["SIMGPU_AS_CUDA"] == "force")
