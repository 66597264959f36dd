"""Kernels for operators on lists of tensors: `_foreach_add_` and its kin, used by optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.autograd.graph import increment_version

from simgpu._kernels.arguments import Arguments
from simgpu._kernels.general import functional_kernel, mutating_kernel
from simgpu._kernels.overloads import PythonKernel
from simgpu._kernels.schema import Schema
from simgpu._runtime.launch import HOST_KEYS, Kernel
from simgpu.errors import DeviceMismatchError


def foreach_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """One launch if all tensors of the lists are on one device, else one for each tensor."""
    written = Schema(kernel.op).written
    in_one = (mutating_kernel if written else functional_kernel)(kernel, reader)

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            result = in_one(*args, **kwargs)
        except DeviceMismatchError:
            return kernel.run(HOST_KEYS, *args, **kwargs)  # a loop over the device's tensors
        for position in written:
            move_versions(args[position])
        return result

    return run


def move_versions(changed: Iterable[Tensor]) -> None:
    """Count a change of each tensor: PyTorch leaves this to the kernels of lists."""
    increment_version([tensor for tensor in changed if not tensor.is_inference()])
