"""Kernel of `scaled_dot_product_attention`: fused wherever the CPU would compute it fused.

PyTorch looks up in a table of C++ whether a device has a fused kernel. Python cannot add to it, so
on a simulated device PyTorch would always compute attention step by step, with memory for a score
of every pair of positions. Here the choice is made first; it is the CPU's, whose kernel it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.backends import cuda
from torch.nn.attention import SDPBackend
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from simgpu._kernels import attention_rules
from simgpu._kernels.overloads import overload
from simgpu._runtime.launch import HOST_KEYS

Tensor = torch.Tensor
# PyTorch's own code for this operator is the same under every key; the CPU's finds it.
_in_steps = overload("scaled_dot_product_attention")._handle.redispatch_boxed
_host_choice = overload("_fused_sdp_choice")._handle.redispatch_boxed
_fused = overload("_scaled_dot_product_flash_attention_for_cpu")._handle.redispatch_boxed
_flash = overload("_scaled_dot_product_flash_attention")._handle.redispatch_boxed
_efficient = overload("_scaled_dot_product_efficient_attention")._handle.redispatch_boxed
_FUSED = SDPBackend.FLASH_ATTENTION.value
# As a batch of one; before, kernels were chosen for tensors of four dimensions alone.
_FUSES_THREE_DIMENSIONS = TorchVersion(torch.__version__) >= "2.14"
_flash_is_enabled: Callable[[], bool] = cuda.flash_sdp_enabled
_math_is_enabled: Callable[[], bool] = cuda.math_sdp_enabled
_mem_efficient_is_enabled: Callable[[], bool] = cuda.mem_efficient_sdp_enabled
_cudnn_is_enabled: Callable[[], bool] = cuda.cudnn_sdp_enabled


def scaled_dot_product_attention(
    keys: torch._C.DispatchKeySet,
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

    Registered under autograd's key too (with `keys`, the dispatch keys of the call), so that
    autograd records the fused kernel or the steps, whichever it is, as it does on the CPU.
    """
    if enable_gqa and 0 in (*key.shape[-3:-2], *value.shape[-3:-2]):
        raise RuntimeError(  # PyTorch would divide by their number
            "scaled_dot_product_attention with enable_gqa=True needs heads in key and value, got "
            f"shapes {tuple(key.shape)} and {tuple(value.shape)}"
        )
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    if not _math_is_enabled():
        _check_forced(*arguments, enable_gqa)
    if not (dropout_p or enable_gqa or not query.numel()) and _is_forced_by_name(query):
        return _by_cudas_operator(keys, query, key, value, attn_mask, is_causal, scale)
    if (
        dropout_p > 0  # CUDA's fused kernels drop out, so this must not fail where they are forced
        or query.numel() == 0  # with no heads, the kernel would divide by their number
        or _is_batched()
        or not _may_be_fused()
        or (query.dtype is torch.float64 and is_traceable_wrapper_subclass(query))  # as on CUDA
        or not _consistent(query, key, value, attn_mask)
        or _is_single_and_apart(query, key, value)
        or _host_choice(HOST_KEYS, *arguments, scale=scale, enable_gqa=enable_gqa) != _FUSED
    ):
        result: Tensor = _in_steps(HOST_KEYS, *arguments, scale=scale, enable_gqa=enable_gqa)
        return result
    if query.dim() == 3:  # newer releases fuse these as a batch of one, for which they choose again
        mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.dim())]
        batch = (query[None], key[None], value[None], mask, dropout_p, is_causal)
        return scaled_dot_product_attention(keys, *batch, scale=scale, enable_gqa=enable_gqa)[0]
    if is_traceable_wrapper_subclass(query):
        return _by_cudas_operator(keys, query, key, value, attn_mask, is_causal, scale)
    mask = _summand(attn_mask, query.dtype)
    result, _ = _fused(keys, query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale)
    return result


def _check_forced(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> None:
    """Raise where a program has forbidden the steps, and CUDA has no fused kernel for a call."""
    given = query, key, value
    if any(tensor.is_nested for tensor in given) or _is_batched():
        return
    if _consistent(query, key, value, mask):  # if not, PyTorch's own code says so
        if _FUSES_THREE_DIMENSIONS and all(tensor.dim() == 3 for tensor in given):
            query, key, value = (tensor[None] for tensor in given)
        attention_rules.check_some_kernel(
            attention_rules.Call(query, key, value, mask, dropout_p, is_causal, enable_gqa)
        )


def _is_batched() -> bool:
    """Whether `torch.vmap` is at work, which has rules for CUDA's kernels and not for the CPU's."""
    transforms = torch._C._functorch.get_interpreter_stack()
    return transforms is not None and any(
        transform.key() == torch._C._functorch.TransformType.Vmap for transform in transforms
    )


def _may_be_fused() -> bool:
    """Whether `torch.nn.attention.sdpa_kernel` leaves the choice to the CPU's rules.

    They know flash attention and the steps, and raise where neither is left. Where a program
    forbids the steps and allows another of CUDA's kernels, the steps stand for that kernel.
    """
    return _flash_is_enabled() and (
        _math_is_enabled() or not (_mem_efficient_is_enabled() or _cudnn_is_enabled())
    )


def _is_forced_by_name(query: Tensor) -> bool:
    """Whether code that knows CUDA's operators by name looks for one, and flash is forbidden.

    That some kernel takes the call has been checked. The host knows flash attention alone.
    """
    forced = not (_math_is_enabled() or _flash_is_enabled() or _is_batched())
    return forced and query.dim() == 4 and is_traceable_wrapper_subclass(query)


def _is_single_and_apart(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether heads have size 1 and a stride, which is all one to CUDA's flash attention.

    The host has the steps for them, or raises where these are forbidden.
    """
    return query.shape[-1:] == (1,) and any(
        tensor.stride(-1) != 1 for tensor in (query, key, value) if tensor.dim()
    )


def _consistent(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether devices and dtypes agree; if not, PyTorch's own code says so."""
    return (
        query.device == key.device == value.device
        and query.dtype is key.dtype is value.dtype
        and (
            mask is None
            or (
                mask.device == query.device
                and mask.dtype in (torch.bool, torch.float32, query.dtype)
            )
        )
    )


def _by_cudas_operator(
    keys: torch._C.DispatchKeySet,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """What CUDA would call: DTensor knows how this one is sharded, and `context_parallel` too."""
    given = query, key, value
    halves = query.dtype in (torch.float16, torch.bfloat16)
    if mask is None and halves and _flash_is_enabled():
        flash: Tensor = _flash(keys, *given, 0.0, is_causal, False, scale=scale)[0]
        return flash
    mask = _summand(mask, query.dtype)
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
    efficient: Tensor = _efficient(keys, *given, mask, True, 0.0, is_causal, scale=scale)[0]
    return efficient


def _summand(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What to add to the scores: of a mask of booleans, minus infinity where they are false."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    with torch._C.DisableTorchFunction():  # functions that users installed do not see it
        zero = torch.zeros((), dtype=dtype, device=mask.device)
        return torch.where(mask, zero, -math.inf)
