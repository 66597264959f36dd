"""Kernels of dropout, which draw from the device's own generator.

The host's kernel takes no generator and would consume the default CPU one. With CUDA's generator
the mask is that of a GPU (`simgpu._random.samplers`). The backward kernels of the host
and of CUDA give the same numbers as the one here (the scale is a float, and the product is rounded
once), which is twice as fast: PyTorch has no vector code that reads booleans, but has some that
reads the same bytes as integers.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._core import world
from simgpu._core.launch import Kernel, launch
from simgpu._memory.ownership import adopt
from simgpu._native.relabel import HOST, relabel
from simgpu._ops.checks import few_dims
from simgpu._ops.dtypes import no_kernel
from simgpu._ops.from_schema import computed
from simgpu._ops.random import source_of
from simgpu._ops.table import row
from simgpu._random.fill import Source
from simgpu._random.samplers import REAL, dropout_parameters, fill_mask

_aten = torch.ops.aten
_empty_like = _aten.empty_like.default._handle.redispatch_boxed
_bernoulli = _aten.bernoulli_.float._handle.redispatch_boxed
_mul = _aten.mul.Tensor._handle.redispatch_boxed
_mul_ = _aten.mul_.Scalar._handle.redispatch_boxed


def _host_dropout(
    keys: torch._C.DispatchKeySet,
    tensor: torch.Tensor,
    p: float,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    mask = _empty_like(keys, tensor, dtype=torch.bool)
    _bernoulli(keys, mask, 1 - p, generator=generator)
    kept = _mul(keys, tensor, mask.view(torch.uint8))
    return _mul_(keys, kept, 0.0 if p == 1 else 1 / (1 - p)), mask


def _cuda_dropout(
    keys: torch._C.DispatchKeySet, tensor: torch.Tensor, p: float, source: Source
) -> tuple[torch.Tensor, torch.Tensor]:
    mask = _empty_like(keys, tensor, dtype=torch.bool)
    if p == 1 or not tensor.numel():  # draws nothing
        return _empty_like(keys, tensor).zero_(), mask.zero_()
    _refuse_unless_real(tensor, "fused_dropout")
    keep, scale = dropout_parameters(p, tensor.dtype)
    with torch._C.DisableTorchFunction():
        fill_mask(mask, tensor, keep, source)
        kept = _mul(keys, tensor, mask.view(torch.uint8))
        if kept.itemsize > 2:
            return _mul_(keys, kept, scale), mask
        # The CPU rounds a number to the tensor's dtype first, but not a tensor of one float.
        return kept.mul_(torch.tensor(scale, dtype=torch.float32, device="cpu")), mask


def _host_identity(
    keys: torch._C.DispatchKeySet, tensor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    mask = _empty_like(keys, tensor, dtype=torch.bool).fill_(True)
    return tensor.clone(), mask


def _host_backward(grad_output: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    if mask.dtype is not torch.bool:
        raise RuntimeError(
            f"Mask should be Bool Scalar Type, got {mask.dtype}: hand over mask.bool()"
        )
    _refuse_unless_real(grad_output, "masked_scale")
    return (grad_output * mask.view(torch.uint8)).mul_(scale)


def _refuse_unless_real(tensor: torch.Tensor, name: str) -> None:
    """Raise where CUDA has no kernel of this name for the dtype."""
    if tensor.dtype not in REAL:
        raise no_kernel(name, tensor.dtype)


_DROPOUT = Kernel(_aten.native_dropout.default, _host_dropout)
_CUDA_DROPOUT = Kernel(_aten.native_dropout.default, _cuda_dropout)
_IDENTITY = Kernel(_aten.native_dropout.default, _host_identity)


def native_dropout(input: torch.Tensor, p: float, train: bool | None) -> Any:
    """Zero elements with probability `p` and scale the rest; the mask is the second result."""
    index = input.get_device()
    host = relabel(input, HOST)
    source = source_of(world.device(index))
    is_cuda = isinstance(source, Source)  # which draws where p is 0, too
    if train is False or (p == 0 and not is_cuda):
        result = launch(_IDENTITY, index, (host,), {})
    else:
        result = launch(_CUDA_DROPOUT if is_cuda else _DROPOUT, index, (host, p, source), {})
    return tuple(adopt(tensor, index) for tensor in result)


row("native_dropout", kernel=native_dropout, checks=(few_dims,))
row("native_dropout_backward", make=computed(_host_backward))
