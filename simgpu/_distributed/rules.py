"""What NCCL and gloo refuse, in the words of PyTorch's ProcessGroupNCCL and ProcessGroupGloo.

Dtypes that they do not know, tensors with gaps, bitwise reductions by NCCL, and what gloo cannot
reduce. Between two ranks, gloo sends any dtype.

NCCL sees memory, and no dims: tensors in `channels_last` travel in the order of memory, and so does
what is sent to one rank from any tensor without gaps. Where the receiving tensor has another order,
its values would be permuted without an error.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from simgpu._distributed.collectives import BITWISE, IN_MEMORY, Reduction, described
from simgpu._distributed.groups import Communicator
from simgpu._native.relabel import host_alias
from simgpu.comm import FLOAT8, NCCL_DTYPES

Tensor = torch.Tensor

_CHANNELS_LAST = {
    4: (torch.channels_last, (0, 2, 3, 1)),
    5: (torch.channels_last_3d, (0, 2, 3, 4, 1)),
}
_PREMUL_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_GLOO_DTYPES = NCCL_DTYPES - set(FLOAT8)
_FNUZ = {torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
# As C++ calls them in the error.
_CPP_NAMES = {torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32"}


def host_aliases(
    tensors: Sequence[Tensor], group: Communicator, between_two: bool = False
) -> list[Tensor]:
    """The host aliases of tensors that may travel in a group; raises for those that may not."""
    on_host = all(tensor.is_cpu for tensor in tensors)
    if on_host and tensors and not group.takes_host:
        raise RuntimeError("No backend type associated with device type cpu")
    kind = "gloo" if on_host else group.kind
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_cpu != on_host:
            raise ValueError("Tensors must be CUDA and dense")
        _check_dtype(tensor.dtype, kind, between_two)
    orders = [_order(tensor, between_two and kind == "nccl") for tensor in tensors]
    # Those of ranks that are processes never come here with tensors of the host.
    aliases = list(tensors) if on_host else [host_alias(tensor) for tensor in tensors]
    return [
        alias if order is None else alias.permute(order)
        for alias, order in zip(aliases, orders, strict=True)
    ]


def layout(tensors: Sequence[Tensor], between_two: bool = False) -> str:
    """The memory format of a call's tensors, to be sent to other ranks; "" if contiguous.

    Raises:
        ValueError: their orders differ. Those of one dim have no layout, nor have empty ones.
    """
    orders = {
        _order(tensor, between_two): tensor
        for tensor in tensors
        if tensor.dim() != 1 and tensor.numel()
    }
    if len(orders) > 1:
        one, other, *_ = (
            f"{described([tensor])} with strides {tensor.stride()}" for tensor in orders.values()
        )
        raise ValueError(
            f"tensors of one call need the same order of dimensions in memory, and {one} differs "
            f"from {other}: values would be exchanged. Call .contiguous()"
        )
    order = next(iter(orders), None)
    if order is None:
        return ""
    memory_format, as_last = _CHANNELS_LAST.get(len(order), (None, ()))
    if order == as_last:
        return f"{IN_MEMORY}as {str(memory_format).removeprefix('torch.')}"
    return f"{IN_MEMORY}by dims {', '.join(map(str, order))}"


def _order(tensor: Tensor, between_two: bool) -> tuple[int, ...] | None:
    """The dims of a tensor as they are in memory, the outermost first; None: as they are.

    Those of a tensor between two ranks may be in any order, if there are no gaps.
    """
    if tensor.is_contiguous():
        return None
    memory_format, order = _CHANNELS_LAST.get(tensor.dim(), (None, ()))
    if memory_format is not None and tensor.is_contiguous(memory_format=memory_format):
        return order
    if not between_two:
        raise ValueError("Tensors must be contiguous")
    sizes, strides = tensor.shape, tensor.stride()
    order = tuple(
        sorted(
            range(tensor.dim()),
            key=lambda dim: (1, -strides[dim]) if sizes[dim] > 1 else (0, dim),
        )
    )
    if not tensor.permute(order).is_contiguous():
        raise ValueError("Tensors for P2P must be non-overlapping and dense")
    return order


def _check_dtype(dtype: torch.dtype, kind: str, between_two: bool) -> None:
    dtype = dtype.to_real() if dtype.is_complex else dtype
    if kind == "nccl" and dtype not in NCCL_DTYPES:
        name = _CPP_NAMES.get(dtype, str(dtype).removeprefix("torch."))
        raise TypeError(f"Input tensor data type is not supported for NCCL process group: {name}")
    if kind == "gloo" and dtype not in _GLOO_DTYPES and not between_two:
        known = sorted(str(each).removeprefix("torch.") for each in _GLOO_DTYPES)
        raise RuntimeError(
            f"Invalid scalar type: gloo has no {str(dtype).removeprefix('torch.')} but for send "
            f"and recv, it has {', '.join(known)}"
        )


def check_reduction(dtype: torch.dtype, reduction: Reduction, backend: str) -> None:
    """Raise unless tensors of this dtype can be reduced so."""
    name = reduction.name
    if backend == "gloo" and name == "PREMUL_SUM":
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    if dtype.is_complex and name not in ("SUM", "AVG", "PREMUL_SUM"):
        raise ValueError(f"all_reduce does not support {name} on complex tensors")
    if name == "AVG" and backend == "gloo" and not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(
            f"result type Float can't be cast to the desired output type {dtype}: gloo divides "
            "floating-point numbers, sum the integers and divide afterwards"
        )
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
