"""What NCCL refuses, in the words of PyTorch's ProcessGroupNCCL.

Dtypes that NCCL does not know, bitwise reductions, tensors with gaps. A group of "gloo" takes any
dtype, and bitwise reductions of integers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from simgpu._distributed.communicators import Communicator
from simgpu._distributed.reductions import BITWISE, FLOAT8, Reduction
from simgpu._native.dlpack_relabel import host_alias

Tensor = torch.Tensor

_NCCL_DTYPES = {
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    *FLOAT8,
}
_PREMUL_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_FNUZ = {torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
# As C++ calls them in the error.
_CPP_NAMES = {torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32"}


def host_aliases(tensors: Sequence[Tensor], group: Communicator) -> list[Tensor]:
    """The host aliases of tensors that may travel in a group; raises for those that may not."""
    if all(tensor.is_cpu for tensor in tensors):
        return _of_the_host(tensors, group)
    for tensor in tensors:
        _check_tensor(tensor, group.kind)
    return [host_alias(tensor) for tensor in tensors]


def _of_the_host(tensors: Sequence[Tensor], group: Communicator) -> list[Tensor]:
    """Of ranks that are threads: those of processes hand tensors of the CPU to gloo itself."""
    if tensors and not group.takes_host:
        raise RuntimeError("No backend type associated with device type cpu")
    for tensor in tensors:
        if tensor.layout is not torch.strided or not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")
    return list(tensors)


def _check_tensor(tensor: Tensor, backend: str) -> None:
    if tensor.is_cpu or tensor.layout is not torch.strided:
        raise ValueError("Tensors must be CUDA and dense")
    if not tensor.is_contiguous():
        raise ValueError("Tensors must be contiguous")
    if backend == "nccl":
        _check_dtype(tensor.dtype)


def _check_dtype(dtype: torch.dtype) -> None:
    dtype = dtype.to_real() if dtype.is_complex else dtype
    if dtype not in _NCCL_DTYPES:
        name = _CPP_NAMES.get(dtype, str(dtype).removeprefix("torch."))
        raise TypeError(f"Input tensor data type is not supported for NCCL process group: {name}")


def check_reduction(dtype: torch.dtype, reduction: Reduction, backend: str) -> None:
    """Raise unless tensors of this dtype can be reduced so."""
    name = reduction.name
    if dtype.is_complex and name not in ("SUM", "AVG", "PREMUL_SUM"):
        raise ValueError(f"all_reduce does not support {name} on complex tensors")
    if dtype is torch.bool and name == "AVG":
        raise TypeError("Cannot use ReduceOp.AVG with Bool")
    if name in BITWISE and backend == "nccl":
        raise ValueError(f"Cannot use ReduceOp.{name} with NCCL")
    if name in BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(f"Cannot use ReduceOp.{name} with non-integral dtype")
    if name == "PREMUL_SUM" and (dtype.to_real() if dtype.is_complex else dtype) not in (
        _PREMUL_DTYPES
    ):
        raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")
    if dtype in _FNUZ:
        raise RuntimeError("Unsupported Float8 type for NCCL reduction")
