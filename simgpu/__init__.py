"""simgpu: N simulated GPUs on the CPU, for testing multi-GPU PyTorch code without GPUs.

    with simgpu.devices(4) as devices:
        x = torch.randn(8, 2, device="simgpu:1")

How the package is laid out, from the bottom up:

    errors          every error raised here
    _relabel        the one place where memory crosses a device label
    _patches        what is replaced for a while and put back
    _random, _world     which devices exist; what each owns; the current device
    _told           what errors call the devices
    _stand_in, _streams
    _launch         the one function that every kernel and copy passes; observers
    _memory_functions, _memory      the ledger, and ownership of results
    _aliases        host aliases that show a kernel which of its tensors overlap
    _virtual, _native_answers, _pinned      what C++ asks of a backend, told without Python
    _layout, _growth, _storage      storages, and the words in them that Python cannot set
    _native_functions, _arguments, _resize, _kernels, _copies, _indexing, _dropout, _recurrent,
    _attention, _sparse_indices, _composite     kernels
    _guards, _refused       checks before host kernels that trust their arguments; what is refused
    _register       which operator gets which kernel
    _autocast_policy, _autocast     automatic mixed precision
    comm, _collectives      how hardware sums; what PyTorch has in its CUDA builds only
    _legacy, _generators    what torch makes in C++ for the device types that it knows
    _accelerator    the current device, as others ask for it
    _autograd, _data        what torch must do differently
    _sending, _life         other processes: what is not sent, forks, the end
    _settings, _refused_names, device_module        torch.simgpu
    _frames         what torch.compile leaves alone
    _backend        registering all of it with torch, once
    _api, _trace    what users call
    _cuda_names, _cuda_module, _cuda_tools, _as_cuda        devices that go by the name of CUDA
    _values, _network, _tried, _fuzz_source, strategies     inputs for tests, with hypothesis
    _inputs, _pictures, _run        the command that runs a script; what it saw
    _fuzz_tally, _fuzz_report, _fuzz_plugin, _fuzz      the command that looks for examples which
                    break a property
    _gpu_groups, pytest_plugin, pytest_as_cuda, _autoload, __main__     ways in

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
    from simgpu._backend.devices import devices
    from simgpu._cuda.as_cuda import as_cuda
    from simgpu._profiling.trace import Trace, trace
    from simgpu._runtime.instruments import Record


__all__ = ["Record", "Trace", "as_cuda", "comm", "devices", "errors", "trace"]

_HOME = {
    "Record": "simgpu._runtime.instruments",
    "Trace": "simgpu._profiling.trace",
    "as_cuda": "simgpu._cuda.as_cuda",
    "devices": "simgpu._backend.devices",
    "trace": "simgpu._profiling.trace",
}


def __getattr__(name: str) -> Any:
    if name in ("comm", "errors", "strategies"):
        return importlib.import_module(f"simgpu.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'simgpu' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
