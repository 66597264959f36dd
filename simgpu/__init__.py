"""simgpu: N simulated GPUs on the CPU, for testing multi-GPU PyTorch code without GPUs.

    with simgpu.devices(4) as devices:
        x = torch.randn(8, 2, device="simgpu:1")

The folders, from the ground up; each imports only what is above it here:

    errors, comm    public: every error; the order in which simulated NCCL reductions add
    _naming, _patches, _class_proxies   the device type's name; tables of monkey patches
    _native         code that reads and writes memory by address: C++ objects, machine code
    _models         the numbers of real GPUs, which a device can be told to show
    _random         CUDA's random numbers: generator, threads, elements, distributions
    _runtime        devices, current device, memory accounting, streams, launches, instruments
    _memory         the memory of tensors: ownership, host aliases, storages, pinned memory
    _kernels        the kernel of each operator, and the table of which operator gets which
    _distributed    torch.distributed: collectives, what ranks agree on, the backend "nccl"
    _backend        registration with PyTorch; device_module is torch.simgpu; torch_patches are
                    the monkey patches of torch that stay
    _cuda           simgpu.as_cuda: devices that answer to "cuda", for the length of a block
    _ranks          simgpu.ranks: worlds of torch.distributed in threads
    _startup        SIMGPU_DEVICE_COUNT and SIMGPU_AS_CUDA at import torch; simgpu.enable
    _profiling      simgpu.trace(); simgpu run --trace and --summary
    _simulation     simgpu.faults, simgpu.sweep: failures on purpose; simgpu.schedule and
                    simgpu.schedules: the order of threads; simgpu.asynchronous and simgpu.races:
                    streams that overlap, and what nothing orders; simgpu.clock: estimated time
    _cli, __main__  the commands

Beside it, for tests:

    _testing, strategies    inputs drawn by hypothesis
    _fuzz           simgpu fuzz and replay: look for examples that break a property
    _pytest, pytest_plugin  the fixture `devices` and the options

Importing this package does not import torch; the first use of a public name does. It never
imports dataparallel.

May import: `_ranks`, `_startup`, `_cuda`, `_backend/devices`, `_simulation/asynchronous`,
`_simulation/timing`, `_backend/device_module`, `_simulation/failures`, `_simulation/schedules`,
`_profiling`, `_simulation/races`, `_runtime`, `errors`, `strategies`, `comm`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simgpu import (
        comm,
        errors,
    )
    from simgpu import (
        strategies as strategies,  # needs hypothesis: a name, not in __all__
    )
    from simgpu._backend import device_module
    from simgpu._backend.devices import devices
    from simgpu._cuda.as_cuda import as_cuda
    from simgpu._profiling.trace import Trace, trace
    from simgpu._ranks.run import ranks
    from simgpu._runtime.instruments import Record
    from simgpu._simulation.asynchronous.block import asynchronous
    from simgpu._simulation.failures.faults import faults
    from simgpu._simulation.failures.sweep import sweep
    from simgpu._simulation.races.block import races
    from simgpu._simulation.schedules.block import schedule
    from simgpu._simulation.schedules.explore import schedules
    from simgpu._simulation.timing.block import Estimate, clock
    from simgpu._simulation.timing.topology import Link
    from simgpu._startup.without_block import disable, enable

__all__ = [
    "Estimate",
    "Link",
    "Record",
    "Trace",
    "as_cuda",
    "asynchronous",
    "clock",
    "comm",
    "device_module",
    "devices",
    "disable",
    "enable",
    "errors",
    "faults",
    "races",
    "ranks",
    "schedule",
    "schedules",
    "sweep",
    "trace",
]

_HOME = {
    "Estimate": "simgpu._simulation.timing.block",
    "Link": "simgpu._simulation.timing.topology",
    "Record": "simgpu._runtime.instruments",
    "Trace": "simgpu._profiling.trace",
    "as_cuda": "simgpu._cuda.as_cuda",
    "asynchronous": "simgpu._simulation.asynchronous.block",
    "clock": "simgpu._simulation.timing.block",
    "devices": "simgpu._backend.devices",
    "disable": "simgpu._startup.without_block",
    "enable": "simgpu._startup.without_block",
    "faults": "simgpu._simulation.failures.faults",
    "races": "simgpu._simulation.races.block",
    "ranks": "simgpu._ranks.run",
    "schedule": "simgpu._simulation.schedules.block",
    "schedules": "simgpu._simulation.schedules.explore",
    "sweep": "simgpu._simulation.failures.sweep",
    "trace": "simgpu._profiling.trace",
}


def __getattr__(name: str) -> Any:
    modules = {
        **{public: f"simgpu.{public}" for public in ("comm", "errors", "strategies")},
        "device_module": "simgpu._backend.device_module",
    }
    if name not in modules and name not in _HOME:
        raise AttributeError(f"module 'simgpu' has no attribute {name!r}")
    # First: under SIMGPU_DEVICE_COUNT it makes devices, and so imports what is asked for here.
    importlib.import_module("torch")
    if name in modules:
        return importlib.import_module(modules[name])
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
