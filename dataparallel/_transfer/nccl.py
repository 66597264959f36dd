"""Whether NCCL can carry a transfer, and the two collectives that this package asks of it.

The one place that knows a transport by name. It asks torch, so that a device type which answers for
itself is carried too. Everything else is written for any device type and falls back to peer copies
and an ordered sum whenever `usable` says no.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.cuda import nccl

from dataparallel._transfer import transforms

# Those of torch/csrc/cuda/nccl.cpp, to_nccl_data_type; complex numbers travel as two of them.
_DTYPES = {
    *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
}


def usable(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether NCCL takes these tensors: on devices of their own, dense, contiguous, of one dtype.

    A dtype that NCCL does not know, such as int16, is copied and added without it.

    Source: torch/cuda/nccl.py, is_available.
    """
    # The library first: where it is missing, the other questions would be asked for nothing.
    if len(tensors) < 2 or not _nccl_accepts(tensors):
        return False
    if len({tensor.device for tensor in tensors}) < len(tensors):
        return False
    if len({tensor.dtype for tensor in tensors}) > 1:
        return False
    return all(_is_plain(tensor) for tensor in tensors)


def can_broadcast(tensor: torch.Tensor, devices: Sequence[torch.device]) -> bool:
    """Whether NCCL can copy `tensor` from `devices[0]` to the others."""
    return (
        devices[0] == tensor.device
        and _nccl_accepts([tensor])
        and len(set(devices)) == len(devices) > 1
        and len({device.type for device in devices}) == 1
        and _is_plain(tensor)
    )


def _nccl_accepts(tensors: Sequence[torch.Tensor]) -> bool:
    # A build without NCCL answers with a warning that no caller can act on.
    return (
        hasattr(torch._C, "_nccl_all_reduce")
        and all(tensor.layout is torch.strided for tensor in tensors)
        and not transforms.active(tensors)
        and bool(
            nccl.is_available(tensors)  # type: ignore[no-untyped-call]
        )
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    # A conjugate or negative bit is a promise that only ATen kernels keep.
    return (
        tensor.numel() > 0
        and (tensor.dtype in _DTYPES or tensor.is_complex())
        and tensor.is_contiguous()
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    # NCCL has no complex types; a sum of complex numbers is the sum of both parts.
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def broadcast(tensors: Sequence[torch.Tensor]) -> None:
    """Copy the first tensor into all others."""
    nccl.broadcast([_as_real(tensor.detach()) for tensor in tensors])


def reduce(tensors: Sequence[torch.Tensor], root: int) -> torch.Tensor:
    """The sum of the tensors, on the device of `tensors[root]`; the order is NCCL's."""
    output = torch.empty_like(tensors[root])
    nccl.reduce([_as_real(t.detach()) for t in tensors], _as_real(output), root)
    return output
