"""simgpu: N simulated GPUs on the CPU, for testing multi-GPU PyTorch code without GPUs.

    with simgpu.devices(4) as devices:
        x = torch.randn(8, 2, device="simgpu:1")

How the package is laid out, from the ground up; each folder imports only what stands above it here
(docs/architecture.md has the table, and a test holds every import to it):

    errors, comm    public: every error; models of the order in which hardware sums
    _naming, _patches, _class_proxies   what devices are called; replacing attributes of torch
    _native         the only code that touches raw memory: C++ layouts, vtables, machine code
    _runtime        the simulated machine: devices, memory ledgers, streams, launches, instruments
    _memory         the memory of tensors: owners, aliases, storages, pinned memory
    _kernels        what an operator does, and which operator gets which kernel
    _backend        registering with torch; device_module is torch.simgpu; torch_patches is all
                    that is replaced in torch for good
    _cuda           devices by the name of CUDA
    _startup        what a process does at start
    _profiling      instruments: trace, timeline, totals
    _cli, __main__  the commands

Beside it, for tests:

    _testing, strategies    inputs drawn by hypothesis
    _fuzz           the command that looks for examples which break a property
    _pytest, pytest_plugin  the fixture `devices` and the options

Importing this package does not import torch; the first use of a public name does. It never
imports dataparallel.
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
    from simgpu._runtime.instruments import Record
    from simgpu._startup.without_block import disable, enable

__all__ = [
    "Record",
    "Trace",
    "as_cuda",
    "comm",
    "device_module",
    "devices",
    "disable",
    "enable",
    "errors",
    "trace",
]

_HOME = {
    "Record": "simgpu._runtime.instruments",
    "Trace": "simgpu._profiling.trace",
    "as_cuda": "simgpu._cuda.as_cuda",
    "devices": "simgpu._backend.devices",
    "disable": "simgpu._startup.without_block",
    "enable": "simgpu._startup.without_block",
    "trace": "simgpu._profiling.trace",
}


def __getattr__(name: str) -> Any:
    if name in ("comm", "errors", "strategies"):
        return importlib.import_module(f"simgpu.{name}")
    if name == "device_module":
        return importlib.import_module("simgpu._backend.device_module")
    if name not in _HOME:
        raise AttributeError(f"module 'simgpu' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
