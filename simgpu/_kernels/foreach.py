"""Kernels for operators on lists of tensors: `_foreach_add_` and its kin, used by optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from simgpu._kernels.arguments import Arguments
from simgpu._kernels.general import functional_kernel, mutating_kernel
from simgpu._kernels.overloads import PythonKernel
from simgpu._kernels.schema import Schema
from simgpu._runtime.launch import HOST_KEYS, Kernel
from simgpu.errors import DeviceMismatchError

# These add one tensor without dimensions to each of a list.
_ADD_ONE = ("aten::_foreach_add.Tensor", "aten::_foreach_add_.Tensor")


def foreach_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """One launch if all tensors of the lists are on one device, else one for each tensor."""
    written = Schema(kernel.op).written
    in_one = (mutating_kernel if written else functional_kernel)(kernel, reader)
    adds_one = kernel.op._name in _ADD_ONE

    def run(*args: Any, **kwargs: Any) -> Any:
        if adds_one:
            _check_place(args[0], args[1])
        try:
            result = in_one(*args, **kwargs)
        except DeviceMismatchError:
            return kernel.run(HOST_KEYS, *args, **kwargs)  # a loop over the device's tensors
        for position in written:
            move_versions(args[position])
        return result

    return run


def _check_place(tensors: Sequence[Tensor], added: Tensor) -> None:
    """The kernel that adds one tensor to all of a list in one launch reads it on their device.

    Lists that this kernel does not take are added to one by one, and the tensor may lie on the host
    (aten/src/ATen/native/cuda/ForeachBinaryOpScalarTensor.cu).
    """
    device, dtype = tensors[0].device, added.dtype
    if added.dim() or added.device == device:
        return
    alike = all(x.device == device and x.dtype == dtype for x in tensors)
    if alike and all(torch.ops.aten.is_non_overlapping_and_dense(x) for x in tensors):
        raise DeviceMismatchError(
            f"scalar tensor expected to be on {device} but is on {added.device}"
        )


def move_versions(changed: Iterable[Tensor]) -> None:
    """Count a change of each tensor: PyTorch leaves this to the kernels of lists."""
    increment_version([tensor for tensor in changed if not tensor.is_inference()])
