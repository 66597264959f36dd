"""Kernels for operators with a `generator` argument: `normal_`, `bernoulli`, `multinomial`.

They draw from the generator of the tensors' device (`simgpu._runtime.random`), not from the CPU's.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._kernels.arguments import Arguments
from simgpu._kernels.overloads import PythonKernel
from simgpu._kernels.schema import Schema, result_picker
from simgpu._runtime import world
from simgpu._runtime.launch import Kernel, launch
from simgpu._runtime.random import check_generator


def generator_for(kernel: Kernel, index: int, given: torch.Generator | None) -> torch.Generator:
    """The generator that `kernel` draws from on device `index`: `given`, or the device's own."""
    if given is None:
        return world.device(index).generator
    return check_generator(given, index, exact=kernel.name.startswith("randperm"))


def random_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Operators that draw: from the device's own generator unless the caller gives one."""
    pick = result_picker(kernel.op)
    position = Schema(kernel.op).names.index("generator")

    def run(*args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> Any:
        if len(args) > position:
            args, generator = args[:position], args[position]
        index, host_args, host_kwargs = reader.read(args, kwargs)
        host_kwargs["generator"] = generator_for(kernel, index, generator)
        return pick(launch(kernel, index, host_args, host_kwargs), args, kwargs, index)

    return run
