"""simgpu: N simulated GPUs on the CPU, for testing multi-GPU PyTorch code without GPUs.

    with simgpu.devices(4) as devices:
        x = torch.randn(8, 2, device="simgpu:1")

How the package is laid out, from the bottom up:

    errors          every error raised here
    _relabel        the one place where memory crosses a device label
    _world          which devices exist; what each owns; the current device
    _random, _streams
    _launch         the one function that every kernel and copy passes; observers
    _memory         ownership of results, and the ledger
    _aliases        host aliases that show a kernel which of its tensors overlap
    _arguments, _kernels, _copies, _resize, _dropout, _recurrent, _attention, _composite     kernels
    _guards, _sparse_indices    checks before host kernels that trust their arguments
    _refused        operators that raise, and why
    _register       which operator gets which kernel
    _autocast_policy, _autocast    automatic mixed precision
    _accelerator    the current device, as others ask for it
    _autograd, _data      what torch must do differently
    _layout, _growth, _storage     storages, and the words in them that Python cannot set
    _virtual, _native_answers      what C++ asks of a backend, told without Python
    _pinned, _generators, _stand_in, _legacy     what torch makes in C++ for the device types that
                    it knows
    _sending, _life       other processes: what is not sent, forks, the end
    _frames         what torch.compile leaves alone
    _backend        registering all of it with torch, once
    _memory_functions, _settings, _refused_names, device_module    torch.simgpu
    _api, _trace    what users call
    _as_cuda, _cuda_names, _cuda_module, _cuda_tools, _told, _patches     devices that go by the
                    name of CUDA
    _values, _network, _tried, strategies     inputs for tests, with hypothesis
    _fuzz, _fuzz_*  the command that looks for examples which break a property
    _run, _pictures, _inputs              the command that runs a script; what it saw
    pytest_plugin (with _gpu_groups, pytest_as_cuda), __main__, _autoload    ways in

Importing this package does not import torch; the first use of a public name does. It never
imports dataparallel.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simgpu import comm, errors
    from simgpu import strategies as strategies  # needs hypothesis: a name, not in __all__
    from simgpu._api import devices
    from simgpu._as_cuda import as_cuda
    from simgpu._launch import Record
    from simgpu._trace import Trace, trace

__all__ = ["Record", "Trace", "as_cuda", "comm", "devices", "errors", "trace"]

_HOME = {
    "Record": "simgpu._launch",
    "Trace": "simgpu._trace",
    "as_cuda": "simgpu._as_cuda",
    "devices": "simgpu._api",
    "trace": "simgpu._trace",
}


def __getattr__(name: str) -> Any:
    if name in ("comm", "errors", "strategies"):
        return importlib.import_module(f"simgpu.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'simgpu' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
