"""Kernels of operators of one to three tensors: `exp`, `x + 1`, `mul_`, `addmm`, `mul(out=z)`.

Nearly every step of a program is one of these, so their kernels do no more than they must: take
the host aliases, launch, adopt the result. Whatever is not plain (tensors of two devices, tensors
that share memory) goes through `Arguments.read`, as in the kernels of all other operators.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._kernels.arguments import NUMBERS, Arguments, kept_number
from simgpu._kernels.outputs import launch_into, out_kernel
from simgpu._kernels.overloads import PythonKernel
from simgpu._kernels.schema import Schema
from simgpu._kernels.wider_dtypes import host_code
from simgpu._memory.host_aliases import on_one_storage
from simgpu._memory.ownership import adopt
from simgpu._runtime.launch import Kernel, launch

Tensor = torch.Tensor


def unary_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """One tensor in, a new one out: `exp`, `sum`, `softmax`."""
    alias = reader.alias

    def run(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        index = self.get_device()
        return adopt(launch(kernel, index, (alias(self), *args), kwargs), index)

    return run


def binary_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Two tensors in, a new one out: `add`, `mm`; a number may stand for the second."""
    with_number = _number_kernel(kernel)
    alias = reader.alias

    def run(self: Tensor | complex, other: Tensor | complex, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(other, Tensor) and isinstance(self, Tensor):
            index = self.get_device()
            if other.get_device() == index:
                host = (alias(self), alias(other), *args)
                return adopt(launch(kernel, index, host, kwargs), index)
        elif with_number is not None and isinstance(self, Tensor):
            index = self.get_device()
            host = (alias(self), other, *args)
            return adopt(launch(with_number, index, host, kwargs), index)
        index, host_args, host_kwargs = reader.read((self, other, *args), kwargs)
        return adopt(launch(kernel, index, host_args, host_kwargs), index)

    return run


def ternary_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Three tensors in, a new one out: `addmm`, which a linear layer is, `where`, `lerp`."""
    alias = reader.alias

    def run(self: Tensor, second: Tensor, third: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(self, Tensor) and isinstance(second, Tensor) and isinstance(third, Tensor):
            index = self.get_device()
            if index == second.get_device() == third.get_device():
                host = (alias(self), alias(second), alias(third), *args)
                return adopt(launch(kernel, index, host, kwargs), index)
        index, host_args, host_kwargs = reader.read((self, second, third, *args), kwargs)
        return adopt(launch(kernel, index, host_args, host_kwargs), index)

    return run


def binary_in_place_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Two tensors in, the first is the result: `add_`; a number may stand for the second."""
    with_number = _number_kernel(kernel)
    alias = reader.alias

    def run(self: Tensor, other: Tensor | complex, *args: Any, **kwargs: Any) -> Tensor:
        index = self.get_device()
        if isinstance(other, Tensor):
            if other.get_device() == index and (other is self or not on_one_storage(self, other)):
                launch(kernel, index, (alias(self), alias(other), *args), kwargs)
                return self
        elif with_number is not None:
            launch(with_number, index, (alias(self), other, *args), kwargs)
            return self
        index, host_args, host_kwargs = reader.read((self, other, *args), kwargs)
        launch(kernel, index, host_args, host_kwargs)
        return self

    return run


def binary_out_kernel(kernel: Kernel, reader: Arguments) -> PythonKernel:
    """Two tensors in, the result in a third: `mul.out`; a number may stand for the second.

    DistributedDataParallel puts each gradient into its bucket by one.
    """
    general = out_kernel(kernel, reader)
    alias = reader.alias

    def run(self: Tensor | complex, other: Tensor | complex, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = kwargs["out"]
        index = out.get_device()
        if index >= 0 and isinstance(self, Tensor) and _is_beside(out, self, index):
            first, second = alias(self), None
            if isinstance(other, NUMBERS):
                second = kept_number(other, first)
            elif _is_beside(out, other, index):
                second = alias(other)
            if second is not None:
                host_kwargs = {**kwargs, "out": alias(out)}
                if launch_into(out, kernel, index, (first, second, *args), host_kwargs):
                    return out
        return general(self, other, *args, **kwargs)  # type: ignore[no-any-return]

    return run


def _is_beside(out: Tensor, other: Tensor, index: int) -> bool:
    """Whether a tensor is on device `index` too, on another storage than `out`."""
    return other.get_device() == index and not on_one_storage(out, other)


def _number_kernel(kernel: Kernel) -> Kernel | None:
    """The overload of a two-tensor operator that takes a number in place of the second tensor.

    `x + 1` reaches `add.Tensor` with the plain number 1; only `add.Scalar` takes it as such.
    """
    if Schema(kernel.op).types[:2] != ["Tensor", "Tensor"]:
        return None
    packet = kernel.op.overloadpacket
    name = kernel.op._overloadname
    head, found, tail = name.rpartition("Tensor")
    candidates = [f"{head}Scalar{tail}", f"{name}_Scalar"] if found else ["Scalar"]
    for sibling in candidates:
        if sibling in packet.overloads():
            op = getattr(packet, sibling)
            return Kernel(op, host_code(op))
    return None
