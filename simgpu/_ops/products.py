"""Convolutions and matrix products that CUDA has kernels for and the CPU has not.

PyTorch has kernels for them where it is built with CUDA. They compute what `torch.convolution`
does; `benchmark`, `deterministic` and `allow_tf32` choose among algorithms of cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from simgpu._core.launch import Kernel
from simgpu._ops.calls import Arguments, PythonKernel, overload
from simgpu._ops.dtypes import FLOATING, name_of, no_kernel
from simgpu._ops.from_schema import computed_kernel, functional_kernel, out_kernel

Tensor = torch.Tensor


def _zeros(stride: Sequence[int]) -> list[int]:
    return [0] * len(stride)


def cudnn_convolution(
    x: Tensor,
    weight: Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
) -> Tensor:
    """A convolution without a bias."""
    return torch.convolution(
        x, weight, None, stride, padding, dilation, False, _zeros(stride), groups
    )


def cudnn_convolution_transpose(
    x: Tensor,
    weight: Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    benchmark: bool,
    deterministic: bool,
    allow_tf32: bool,
) -> Tensor:
    """A transposed convolution without a bias."""
    return torch.convolution(
        x, weight, None, stride, padding, dilation, True, output_padding, groups
    )


def cudnn_convolution_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The positive part of a convolution."""
    return torch.convolution(
        x, weight, bias, stride, padding, dilation, False, _zeros(stride), groups
    ).relu_()


def cudnn_convolution_add_relu(
    x: Tensor,
    weight: Tensor,
    z: Tensor,
    alpha: float | None,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The positive part of a convolution and `alpha` (1 if None) times `z`."""
    y = torch.convolution(x, weight, bias, stride, padding, dilation, False, _zeros(stride), groups)
    return y.add_(z, alpha=1 if alpha is None else alpha).relu_()


KERNELS: dict[str, PythonKernel] = {
    function.__name__: computed_kernel(overload(function.__name__), function)
    for function in (
        cudnn_convolution,
        cudnn_convolution_transpose,
        cudnn_convolution_relu,
        cudnn_convolution_add_relu,
    )
}


# `mm`, `bmm`, `addmm` and `baddbmm` with `out_dtype=`, which PyTorch has for GPUs alone.
#
# The product of halves is added up in float32 on a GPU, and this overload returns it as such: its
# kernel is that of `mm` of the same numbers in float32, whose products of halves are exact.
#
# Source: the checks and their messages are those of PyTorch's aten/src/ATen/native/cuda/Blas.cpp.

_COMPUTED = FLOATING | {torch.complex64, torch.complex128}
_UNLIKE = "{} and {} must have the same dtype"
_UNLIKE_SHOWN = _UNLIKE + ", but got {} and {}"


class _Product(NamedTuple):
    """One operator, what C++ calls its factors, its error for unlike ones, and its CUDA kernel."""

    function: Callable[..., Tensor]
    factors: tuple[str, str]
    unlike: str
    kernel: str

    def check(self, args: Sequence[Any], out: Tensor | None) -> None:
        """Raise for dtypes that CUDA's kernel does not take together."""
        *added, first, second, out_dtype = args
        if first.dtype != second.dtype:
            unlike = name_of(first.dtype), name_of(second.dtype)
            raise RuntimeError(self.unlike.format(*self.factors, *unlike))
        if out is not None and out.dtype != out_dtype:
            raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor")
        wider = out_dtype == torch.float32 and first.dtype in (torch.float16, torch.bfloat16)
        if out_dtype != first.dtype and not wider:
            raise RuntimeError(
                "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs"
            )
        if added and added[0].dtype not in (out_dtype, first.dtype):
            raise RuntimeError(f"self dtype must match either out_dtype or {self.factors[0]} dtype")
        if first.dtype not in _COMPUTED:
            raise no_kernel(self.kernel, first.dtype)

    def run(
        self, _: torch._C.DispatchKeySet, *args: Any, out: Tensor | None = None, **scales: Any
    ) -> Tensor:
        # It is ours: torch-function modes of the user must not see how it computes.
        with torch._C.DisableTorchFunction():
            self.check(args, out)
            *tensors, out_dtype = args
            return self.function(*(each.to(out_dtype) for each in tensors), out=out, **scales)


_PRODUCTS = (
    _Product(torch.mm, ("mat1", "mat2"), "input dtypes must be the same", "addmm_cuda"),
    _Product(torch.bmm, ("batch1", "batch2"), _UNLIKE, "baddbmm_cuda"),
    _Product(torch.addmm, ("mat1", "mat2"), _UNLIKE_SHOWN, "addmm_cuda"),
    _Product(torch.baddbmm, ("batch1", "batch2"), _UNLIKE, "baddbmm_cuda"),
)


def kernels() -> Iterator[tuple[str, PythonKernel]]:
    """Those that this release of PyTorch knows, by the name of their overload."""
    for product in _PRODUCTS:
        name = product.function.__name__
        packet = getattr(torch.ops.aten, name)
        for suffix, make in (("dtype", functional_kernel), ("dtype_out", out_kernel)):
            if suffix in packet.overloads():
                op = getattr(packet, suffix)
                yield f"{name}.{suffix}", make(Kernel(op, product.run), Arguments(op))
