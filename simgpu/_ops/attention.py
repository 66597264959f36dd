"""`scaled_dot_product_attention`: CUDA's operator for the kernel that CUDA takes, or its steps.

PyTorch looks up in a table of C++ whether a device has fused kernels. Python cannot add to it, so
on a simulated device PyTorch would always compute attention step by step. Here CUDA's choice comes
first (`attention_rules`), and then the call that CUDA makes: modes, autograd and the profiler see
its operator, whose kernel is in `attention_kernels`.

Source: aten/src/ATen/native/transformers/attention.cpp of PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.torch_version import TorchVersion

from simgpu._core.launch import HOST_KEYS
from simgpu._ops import attention_kernels  # noqa: F401  # declares the rows of the kernels
from simgpu._ops.attention_rules import CUDNN, FLASH, MATH, Call, chosen, is_training
from simgpu._ops.calls import overload
from simgpu._ops.table import row

Tensor = torch.Tensor

# PyTorch's own code for this operator is the same under every key; the CPU's finds it.
_in_steps = overload("scaled_dot_product_attention")._handle.redispatch_boxed
_flash = overload("_scaled_dot_product_flash_attention")
_efficient = overload("_scaled_dot_product_efficient_attention")
_cudnn = overload("_scaled_dot_product_cudnn_attention")
_pad, _slice = overload("constant_pad_nd"), overload("slice.Tensor")
_scalar, _where = overload("scalar_tensor"), overload("where.ScalarSelf")
# As a batch of one; before, kernels were chosen for tensors of four dimensions alone.
_FUSES_THREE_DIMENSIONS = TorchVersion(torch.__version__) >= "2.14"
_ALIGNMENT = 8  # of the head sizes of flash attention, and of the rows of a mask


def scaled_dot_product_attention(
    _: torch._C.DispatchKeySet,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` on tensors of a device.

    Registered under autograd's key too, so that autograd records the fused operator or the steps,
    whichever it is.
    """
    if enable_gqa and 0 in (*key.shape[-3:-2], *value.shape[-3:-2]):
        raise RuntimeError(  # PyTorch would divide by their number
            "scaled_dot_product_attention with enable_gqa=True needs heads in key and value, got "
            f"shapes {tuple(key.shape)} and {tuple(value.shape)}"
        )
    call = Call(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    kernel = _kernel_of(call)
    if kernel == MATH or 0 in query.shape:
        result: Tensor = _in_steps(HOST_KEYS, *call[:-1], scale=scale, enable_gqa=enable_gqa)
        return result
    unbatched = query.dim() == 3
    if unbatched:
        call = _batch_of_one(call)
    compute = {FLASH: _by_flash, CUDNN: _by_cudnn}.get(kernel, _by_efficient)
    out = compute(call, scale)
    return out.squeeze(0) if unbatched else out


def fused_sdp_choice(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """`torch._fused_sdp_choice`: the number of an SDPBackend."""
    return _kernel_of(Call(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa))


def _kernel_of(call: Call) -> int:
    if any(tensor.is_nested for tensor in call[:3]) or not _consistent(call):
        return MATH  # the steps take nested tensors, and say what does not fit
    if _FUSES_THREE_DIMENSIONS and all(tensor.dim() == 3 for tensor in call[:3]):
        call = _batch_of_one(call)
    return chosen(call)


def _consistent(call: Call) -> bool:
    """Whether devices and dtypes agree, but for a mask's device: the kernel names it."""
    query, key, value, mask = call[:4]
    if not (query.device == key.device == value.device and query.dtype is key.dtype is value.dtype):
        return False
    return mask is None or (
        not query.is_cpu and mask.dtype in (torch.bool, torch.float32, query.dtype)
    )


def _batch_of_one(call: Call) -> Call:
    mask = call.attn_mask
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
    query, key, value = (tensor.unsqueeze(0) for tensor in call[:3])
    return call._replace(query=query, key=key, value=value, attn_mask=mask)


def _by_flash(call: Call, scale: float | None) -> Tensor:
    """CUDA pads heads to a multiple of 8, and scales by their size from before."""
    size = call.query.shape[-1]
    scale = 1 / math.sqrt(size) if scale is None else scale
    parts = call[:3]
    missing = -size % _ALIGNMENT
    if missing:
        parts = tuple(_pad(tensor, [0, missing]) for tensor in parts)
    out: Tensor = _flash(*parts, call.dropout, call.is_causal, False, scale=scale)[0]
    return _slice(out, -1, 0, size) if missing else out


def _by_efficient(call: Call, scale: float | None) -> Tensor:
    mask = _summand(call, -math.inf)
    if mask is not None:
        strides = mask.stride()
        if strides[-1] != 1 or any(stride % _ALIGNMENT for stride in strides[:-1]):
            last = mask.shape[-1]
            mask = _slice(_pad(mask, [0, _ALIGNMENT - last % _ALIGNMENT]), -1, 0, last)
        mask = mask.expand(*call.query.shape[:3], call.key.shape[2])
    return _with_mask(_efficient, call, mask, scale)


def _by_cudnn(call: Call, scale: float | None) -> Tensor:
    mask = _summand(call, -65504.0)  # the lowest float16, as cuDNN takes no infinity
    return _with_mask(_cudnn, call, mask, scale)


def _with_mask(op: Any, call: Call, mask: Tensor | None, scale: float | None) -> Tensor:
    given = *call[:3], mask, is_training(call), call.dropout, call.is_causal
    return op(*given, scale=scale)[0]  # type: ignore[no-any-return]


def _summand(call: Call, lowest: float) -> Tensor | None:
    """What to add to the scores: of a mask of booleans, `lowest` where they are false."""
    mask = call.attn_mask
    if mask is None or mask.dtype is not torch.bool:
        return mask
    options: dict[str, Any] = {"dtype": call.query.dtype, "device": mask.device}
    added: Tensor = _where(mask, 0.0, _scalar(lowest, **options))
    return added


row("scaled_dot_product_attention", above_autograd=scaled_dot_product_attention)
row("_fused_sdp_choice", kernel=fused_sdp_choice)
