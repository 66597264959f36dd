"""`device_kernel(op)`: the kernel of an operator that nobody wrote one for by hand.

Every such kernel does the same: it takes host aliases of the tensors, lets PyTorch's CPU kernel
compute, and hands the results to the device. What differs is read from the operator's schema, and
each file makes the kernels of one kind of operator:

outputs       `out=` arguments: `torch.add(x, y, out=z)`
random        a `generator` argument: `normal_`, `bernoulli`
factories     a `device` argument: `empty`, `zeros_like`
foreach       lists of tensors: `_foreach_add_`
elementwise   one to three tensors: `exp`, `add`, `add_`, `addmm`, the fast paths
general       all the rest: `convolution`, `native_layer_norm`, `scatter_`
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from simgpu._kernels.arguments import Arguments
from simgpu._kernels.elementwise import (
    binary_in_place_kernel,
    binary_kernel,
    binary_out_kernel,
    ternary_kernel,
    unary_kernel,
)
from simgpu._kernels.factories import factory_kernel
from simgpu._kernels.foreach import foreach_kernel
from simgpu._kernels.general import functional_kernel, mutating_kernel
from simgpu._kernels.outputs import out_kernel
from simgpu._kernels.overloads import PythonKernel
from simgpu._kernels.random import random_kernel
from simgpu._kernels.schema import Schema
from simgpu._kernels.wider_dtypes import host_code
from simgpu._runtime.launch import Kernel

_KernelMaker = Callable[[Kernel, Arguments], PythonKernel]


def device_kernel(op: torch._ops.OpOverload) -> PythonKernel:
    """The Python kernel that computes `op` on a simulated device, whichever its tensors are on."""
    make_kernel = _kind_of(op, Schema(op))
    return make_kernel(Kernel(op, host_code(op)), Arguments(op))


def _kind_of(
    op: torch._ops.OpOverload, schema: Schema
) -> Callable[[Kernel, Arguments], PythonKernel]:
    if schema.outputs:
        is_plain = schema.is_binary_with_output() and "generator" not in schema.names
        return binary_out_kernel if is_plain else out_kernel
    if "generator" in schema.names:
        return random_kernel
    if "device" in schema.names:
        return factory_kernel
    if op._name.startswith("aten::_foreach_"):
        return foreach_kernel
    if schema.written:
        return binary_in_place_kernel if schema.is_binary_in_place() else mutating_kernel
    if schema.is_unary():
        return unary_kernel
    if schema.is_binary():
        return binary_kernel
    return ternary_kernel if schema.is_ternary() else functional_kernel
