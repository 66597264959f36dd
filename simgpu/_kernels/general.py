"""`functional_kernel`, `mutating_kernel`: any schema. `computed_kernel`: no CPU kernel needed.

They take host aliases of all tensors, launch, and hand over the results: new tensors become the
device's, and a result that is one of the arguments is that argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._kernels.arguments import Arguments
from simgpu._kernels.outputs import tell_of_tensors, write_back_output
from simgpu._kernels.overloads import PythonKernel
from simgpu._kernels.schema import result_picker
from simgpu._memory.ownership import adopt_all
from simgpu._native.dlpack_relabel import host_alias
from simgpu._runtime.error_words import wants_to_resize
from simgpu._runtime.launch import Kernel, launch


def functional_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Operators that write to none of their arguments: all results are new."""

    def run(*args: Any, **kwargs: Any) -> Any:
        index, host_args, host_kwargs = reader.read(args, kwargs)
        return adopt_all(launch(kernel, index, host_args, host_kwargs), index)

    return run


def mutating_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """In-place operators: a result that aliases an argument is that argument itself."""
    pick = result_picker(kernel.op)

    def run(*args: Any, **kwargs: Any) -> Any:
        index, host_args, host_kwargs = reader.read(args, kwargs)
        try:
            result = launch(kernel, index, host_args, host_kwargs)
        except RuntimeError as error:
            if not wants_to_resize(error) or not isinstance(args[0], torch.Tensor):
                raise
            # Some let their first argument grow (addbmm_): memory under an alias cannot.
            host_args[0] = host_alias(args[0]).clone()
            result = launch(kernel.with_copies(), index, host_args, host_kwargs)
            write_back_output(args[0], host_args[0])
            tell_of_tensors(kernel, index, reader, args, kwargs)
        return pick(result, args, kwargs, index)

    return run


def computed_kernel(op: torch._ops.OpOverload, host_function: Callable[..., Any]) -> PythonKernel:
    """A kernel for an operator that the host lacks, computed by `host_function` of CPU tensors."""

    def run(_: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        # The function is ours: torch-function modes of the user must not see how it computes.
        with torch._C.DisableTorchFunction():
            return host_function(*args, **kwargs)

    return functional_kernel(Kernel(op, run), Arguments(op))
