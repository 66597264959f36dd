"""`mm`, `bmm`, `addmm` and `baddbmm` with `out_dtype=`, which PyTorch has for GPUs alone.

The product of halves is added up in float32 on a GPU, and this overload returns it as such: its
kernel is that of `mm` of the same numbers in float32, whose products of halves are exact.

Source: the checks and their messages are those of PyTorch's aten/src/ATen/native/cuda/Blas.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from simgpu._kernels.arguments import Arguments
from simgpu._kernels.dtype_rules import FLOATING, name_of, no_kernel
from simgpu._kernels.general import functional_kernel
from simgpu._kernels.outputs import out_kernel
from simgpu._kernels.overloads import PythonKernel
from simgpu._runtime.launch import Kernel

Tensor = torch.Tensor
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
        for overload, make in (("dtype", functional_kernel), ("dtype_out", out_kernel)):
            if overload in packet.overloads():
                op = getattr(packet, overload)
                yield f"{name}.{overload}", make(Kernel(op, product.run), Arguments(op))
