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

# These combine one tensor without dimensions with each of a list: whether it may lie on the host.
_ONE_FOR_ALL = {
    f"aten::_foreach_{name}{in_place}.Tensor": name != "add"
    for name in ("add", "div", "mul")
    for in_place in ("", "_")
}
# CUDA's kernels of these count no change of their tensors, if they are computed in one launch.
_UNCOUNTED = (
    "aten::_foreach_lerp_.Scalar",
    "aten::_foreach_lerp_.ScalarList",
    "aten::_foreach_zero_",
)


def foreach_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """One launch if all tensors of the lists are on one device, else one for each tensor."""
    written = Schema(kernel.op).written
    in_one = (mutating_kernel if written else functional_kernel)(kernel, reader)
    takes_host = _ONE_FOR_ALL.get(kernel.op._name)
    uncounted = kernel.op._name in _UNCOUNTED

    def run(*args: Any, **kwargs: Any) -> Any:
        if takes_host is not None:
            _check_place(args[0], args[1], takes_host, bool(written))
        try:
            result = in_one(*args, **kwargs)
        except DeviceMismatchError:
            return kernel.run(HOST_KEYS, *args, **kwargs)  # a loop over the device's tensors
        if uncounted and _fit_one_launch(args[0]):
            return result
        for position in written:
            move_versions(args[position])
        return result

    return run


def _check_place(
    tensors: Sequence[Tensor], added: Tensor, takes_host: bool, in_place: bool
) -> None:
    """The kernel that combines one tensor with a list in one launch reads it on their device.

    Lists that this kernel does not take are gone through one by one, and the tensor may lie on the
    host (aten/src/ATen/native/cuda/ForeachBinaryOpScalarTensor.cu).
    """
    device = tensors[0].device
    if added.dim() or added.device == device or (takes_host and added.is_cpu):
        return
    if tensors[0].dtype == added.dtype and _fit_one_launch(tensors):
        raise DeviceMismatchError(
            f"scalar tensor {'is ' if in_place else ''}expected to be on {device} but is on "
            f"{added.device}"
        )


def _fit_one_launch(tensors: Sequence[Tensor]) -> bool:
    """Whether CUDA goes through a list in one launch: of one device and dtype, without gaps."""
    device, dtype = tensors[0].device, tensors[0].dtype
    return all(x.device == device and x.dtype == dtype for x in tensors) and all(
        torch.ops.aten.is_non_overlapping_and_dense(x) for x in tensors
    )


def move_versions(changed: Iterable[Tensor]) -> None:
    """Count a change of each tensor: PyTorch leaves this to the kernels of lists."""
    increment_version([tensor for tensor in changed if not tensor.is_inference()])
