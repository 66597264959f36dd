"""simgpu: N simulated GPUs on the CPU, for testing multi-GPU PyTorch code without GPUs.

    with simgpu.devices(4) as devices:
        x = torch.randn(8, 2, device="simgpu:1")

The folders, from the ground up. Each imports only what is above it here, and `_pytest` the public
names of this file as well:

    _util           names, tables of monkey patches, frames, interrupts; no torch
    errors, comm    public: every error; the order in which simulated NCCL reductions add
    _config         options of devices, and the numbers of real GPUs; no torch
    _native         code that reads and writes memory by address: C++ objects, machine code
    _random         CUDA's random numbers: generator, threads, elements, distributions
    _core           the machine: devices, current device, streams, launches, hooks
    _memory         the memory of tensors: ownership, storages, sharing, pinned memory
    _ops            the kernel of each operator, and the table of which operator gets which
    _distributed    torch.distributed: collectives, what ranks agree on, the backend "nccl"
    _backend        registration with PyTorch; namespace is torch.simgpu; torch_patches are the
                    monkey patches of torch that stay
    _cuda           patches of torch by which simulated devices answer to "cuda"
    _devices        simgpu.devices, as_cuda and enable; SIMGPU_DEVICE_COUNT at import torch
    _explore        simgpu.faults, schedule, asynchronous and races: failures, orders of threads,
                    streams that overlap, and what nothing puts in order
    _clock          simgpu.clock: estimated time
    _profiling      simgpu.trace(); simgpu run --trace and --summary
    _ranks          simgpu.ranks: worlds of torch.distributed in threads
    _strategies, strategies     for tests: inputs drawn by hypothesis
    _fuzz           simgpu fuzz and replay: look for examples that break a property
    _pytest, pytest_plugin      for tests: the fixture `devices` and the options
    _cli, __main__  the commands

Importing this package does not import torch; the first use of a public name does. It never
imports dataparallel.

May import: `_ranks`, `_devices`, `_clock`, `_backend/namespace`, `_explore/asynchronous`,
`_explore/faults`, `_explore/schedules`, `_explore/races`, `_profiling`, `_core`, `errors`,
`strategies`, `comm`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simgpu import comm, errors
    from simgpu import (
        strategies as strategies,  # needs hypothesis: a name, not in __all__
    )
    from simgpu._backend import namespace as device_module
    from simgpu._clock.estimate import Estimate, clock
    from simgpu._clock.topology import Link
    from simgpu._core.hooks import Record
    from simgpu._devices.block import as_cuda, devices, disable, enable
    from simgpu._explore.asynchronous.executor import asynchronous
    from simgpu._explore.faults.faults import faults
    from simgpu._explore.faults.sweep import sweep
    from simgpu._explore.races.detector import races
    from simgpu._explore.schedules.explore import schedule, schedules
    from simgpu._profiling.trace import Trace, trace
    from simgpu._ranks.run import ranks

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

__version__ = "0.1.0"

_HOME = {
    "Estimate": "simgpu._clock.estimate",
    "Link": "simgpu._clock.topology",
    "Record": "simgpu._core.hooks",
    "Trace": "simgpu._profiling.trace",
    "as_cuda": "simgpu._devices.block",
    "asynchronous": "simgpu._explore.asynchronous.executor",
    "clock": "simgpu._clock.estimate",
    "devices": "simgpu._devices.block",
    "disable": "simgpu._devices.block",
    "enable": "simgpu._devices.block",
    "faults": "simgpu._explore.faults.faults",
    "races": "simgpu._explore.races.detector",
    "ranks": "simgpu._ranks.run",
    "schedule": "simgpu._explore.schedules.explore",
    "schedules": "simgpu._explore.schedules.explore",
    "sweep": "simgpu._explore.faults.sweep",
    "trace": "simgpu._profiling.trace",
}


def __getattr__(name: str) -> Any:
    modules = {
        **{public: f"simgpu.{public}" for public in ("comm", "errors", "strategies")},
        "device_module": "simgpu._backend.namespace",
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
