"""`scaled_dot_product_attention` and the fused attention operators that CUDA has.

PyTorch looks up in a table of C++ whether a device has a fused kernel. Python cannot add to it, so
on a simulated device PyTorch would always compute attention step by step, with memory for a score
of every pair of positions. Here the choice is made first; it is the CPU's, whose kernel it is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.backends import cuda
from torch.nn.attention import SDPBackend
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from simgpu._core import world
from simgpu._core.launch import HOST_KEYS
from simgpu._ops.calls import overload
from simgpu._ops.checks import refuse
from simgpu._ops.from_schema import computed
from simgpu._ops.table import row
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import UnsupportedError

# Which of CUDA's fused kernels of attention would take a call, by dtype, mask, shape and model.
#
# The numbers do not depend on it. It says where CUDA has no kernel, because a program allows only
# some (`torch.nn.attention.sdpa_kernel`) or asks first (`can_use_flash_attention`). The rules are
# those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. No kernel is said to take nested
# tensors.

Tensor = torch.Tensor
_HALVES = (torch.float16, torch.bfloat16)
_LARGEST = 256  # head size of flash attention
_LARGEST_OF_CUDNN = 128
# Since 2.14, efficient attention shares the heads of keys between queries, and every kernel shares
# a single one, also where nobody asks for it (enable_gqa).
_SHARES_HEADS = TorchVersion(torch.__version__) >= "2.14"
_ASKS_FOR_ALIGNED = _SHARES_HEADS  # also since 2.14; before, such a call failed in the kernel


class Call(NamedTuple):
    """A call of attention, with the names of `torch.backends.cuda.SDPAParams`."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool


def _tensors(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    return call.query, call.key, call.value


def _any_kernel(call: Call) -> str | None:
    """Why no fused kernel takes a call, as far as all have the same rule."""
    tensors = _tensors(call)
    if any(tensor.is_nested for tensor in tensors):
        return "nested tensors are not simulated for it"
    if any(tensor.dim() != 4 for tensor in tensors):
        return f"query, key and value have to be 4-dimensional, got {_shapes(call)}"
    if 0 in (call.query.shape[2], call.key.shape[2]):
        return f"sequences have to be longer than 0, got {_shapes(call)}"
    if len({tensor.shape[0] for tensor in tensors}) > 1:
        return f"batches have to be of one size, got {_shapes(call)}"
    return None


def _heads(call: Call, grouped: bool = True, apart: bool = False) -> str | None:
    """Why a kernel does not take the numbers of heads.

    Args:
        grouped: whether it shares the heads of keys and values between those of queries.
        apart: whether it does so where keys and values have different numbers of them.
    """
    query, key, value = (tensor.shape[1] for tensor in _tensors(call))
    if query == key == value or (_SHARES_HEADS and query and key == value == 1):
        return None
    if not (call.enable_gqa and grouped):
        return f"numbers of heads have to be equal, got {_shapes(call)}"
    if (key != value and not apart) or 0 in (key, value) or query % key or query % value:
        return f"heads of queries have to share those of keys and values, got {_shapes(call)}"
    return None


def _strides(call: Call, one_is_any: bool) -> str | None:
    """Why a kernel does not take the layout; of heads of size 1 it may take any (`one_is_any`)."""
    tensors = _tensors(call)
    strides = [tensor.stride(-1) for tensor in tensors]
    if strides != [1, 1, 1] and not (one_is_any and call.query.shape[-1] == 1):
        return f"the last dimension has to have stride 1, got {strides}"
    mask = call.attn_mask
    if mask is not None and mask.dim() and mask.stride(-1) != 1:
        return f"the last dimension of attn_mask has to have stride 1, got {mask.stride(-1)}"
    return None


def _shapes(call: Call) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in _tensors(call))


def _dtype(call: Call, dtypes: tuple[torch.dtype, ...], capability: tuple[int, int]) -> str | None:
    if capability < (8, 0):  # which compute with no bfloat16
        dtypes = tuple(dtype for dtype in dtypes if dtype is not torch.bfloat16)
    given = {tensor.dtype for tensor in _tensors(call)}
    if len(given) == 1 and given.issubset(dtypes):
        return None
    return f"it takes {' or '.join(map(str, dtypes))}, got {', '.join(sorted(map(str, given)))}"


def _why_not_flash(call: Call, capability: tuple[int, int]) -> str | None:
    size, training = call.query.shape[-1], _is_training(call)
    if capability < (8, 0):
        return f"it needs compute capability 8.0, this device has {_dotted(capability)}"
    if call.attn_mask is not None:
        return "it takes no attn_mask"
    if not size == call.key.shape[-1] == call.value.shape[-1] <= _LARGEST:
        return f"sizes of heads have to be equal and at most {_LARGEST}, got {_shapes(call)}"
    small = (8, 6) <= capability <= (8, 9) or capability >= (12, 0)
    if small and training and size > 192 and (call.dropout or size <= 224):
        return f"heads of size {size} have no gradient on compute capability {_dotted(capability)}"
    if call.is_causal and call.query.shape[2] != call.key.shape[2]:
        return f"is_causal needs sequences of one length, got {_shapes(call)}"
    return _dtype(call, _HALVES, capability) or _heads(call) or _strides(call, one_is_any=True)


def _why_not_efficient(call: Call, capability: tuple[int, int]) -> str | None:
    if capability < (5, 0):
        return f"it needs compute capability 5.0, this device has {_dotted(capability)}"
    half = call.query.dtype in _HALVES
    alignments = {8: 8 if half else 4, 7: 8 if half else 1}
    aligned = alignments.get(min(capability[0], 8), 1)
    sizes = call.query.shape[-1], call.value.shape[-1]
    if call.key.shape[-1] != sizes[0] or any(size % aligned or not size for size in sizes):
        return f"sizes of heads have to be multiples of {aligned}, got {_shapes(call)}"
    places = [tensor.storage_offset() for tensor in _tensors(call) if tensor.numel()]
    if _ASKS_FOR_ALIGNED and capability >= (8, 0) and any(place % aligned for place in places):
        return f"storage offsets have to be multiples of {aligned}, got {places}"
    return (
        _dtype(call, (*_HALVES, torch.float32), capability)
        or _heads(call, grouped=_SHARES_HEADS)
        or _strides(call, one_is_any=False)
    )


def _cudnn(call: Call, capability: tuple[int, int]) -> str | None:
    sizes = call.query.shape[-1], call.value.shape[-1]
    if _is_deterministic():
        return "it is not deterministic, and torch.use_deterministic_algorithms asks for that"
    if capability < (8, 0):
        return f"it needs compute capability 8.0, this device has {_dotted(capability)}"
    wide = sizes == (192, 128) and (capability == (9, 0) or capability[0] == 10)
    if any(size % 8 or size > _LARGEST_OF_CUDNN for size in sizes) and not wide:
        most = _LARGEST_OF_CUDNN
        return f"sizes of heads have to be multiples of 8 up to {most}, got {_shapes(call)}"
    if call.key.shape[2] == 1 or (call.dropout and call.query.shape[2] == 1):
        return f"sequences have to be longer than 1, got {_shapes(call)}"
    if call.dropout * 16 % 1:
        return f"dropout_p has to be a multiple of 1/16, got {call.dropout}"
    return (
        _dtype(call, _HALVES, capability)
        or _mask_of_cudnn(call)
        or _heads(call, apart=True)
        or _strides(call, one_is_any=True)
    )


def _mask_of_cudnn(call: Call) -> str | None:
    mask = call.attn_mask
    if mask is None:
        return None
    if mask.requires_grad:
        return "it has no gradient of attn_mask"
    whole = (*call.query.shape[:3], call.key.shape[2])
    fits = mask.dim() in (2, 4) and all(
        size in (1, full) for size, full in zip(mask.shape, whole[-mask.dim() :], strict=True)
    )
    if not fits:
        return (
            f"attn_mask has to have the last two or all four dimensions of {whole}, or 1 in their "
            f"place, got {tuple(mask.shape)}"
        )
    return None


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _is_deterministic() -> bool:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled() and not warns


def _is_training(call: Call) -> bool:
    tensors = _tensors(call)
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


# Each kernel: whether a program allows it, and its own rules.
_KERNELS: dict[str, tuple[Callable[[], bool], Callable[[Call, tuple[int, int]], str | None]]] = {
    "efficient": (cuda.mem_efficient_sdp_enabled, _why_not_efficient),
    "flash": (cuda.flash_sdp_enabled, _why_not_flash),
    "cudnn": (cuda.cudnn_sdp_enabled, _cudnn),
}


def refusal(kernel: str, call: Call) -> str | None:
    """Why the kernel "flash", "efficient" or "cudnn" does not take a call; None where it does."""
    is_enabled, rules = _KERNELS[kernel]
    if not is_enabled():
        return "it is disabled"
    device = call.query.device
    if device.type != DEVICE_TYPE:
        return f"it needs tensors on a GPU, got {device}"
    capability = world.device(world.resolve(device)).model.compute_capability
    return _any_kernel(call) or rules(call, capability)


def can_use(kernel: str, params: Call, debug: bool = False) -> bool:
    """`torch.backends.cuda.can_use_flash_attention` and its kin; `debug` lets a warning say why."""
    why = refusal(kernel, params)
    if debug and why is not None:
        warnings.warn(f"{kernel} attention kernel not used because: {why}", stacklevel=2)
    return why is None


def check_some_kernel(call: Call) -> None:
    """Raise what CUDA raises, after warnings that say why, where no kernel takes a call."""
    refusals = {kernel: refusal(kernel, call) for kernel in _KERNELS}
    if None in refusals.values():
        return
    for kernel, why in refusals.items():
        warnings.warn(f"{kernel} attention kernel not used because: {why}", stacklevel=3)
    raise RuntimeError("No available kernel. Aborting execution.")


# PyTorch's own code for this operator is the same under every key; the CPU's finds it.
_in_steps = overload("scaled_dot_product_attention")._handle.redispatch_boxed
_host_choice = overload("_fused_sdp_choice")._handle.redispatch_boxed
_fused = overload("_scaled_dot_product_flash_attention_for_cpu")._handle.redispatch_boxed
_flash_kernel = overload("_scaled_dot_product_flash_attention")._handle.redispatch_boxed
_efficient_kernel = overload("_scaled_dot_product_efficient_attention")._handle.redispatch_boxed
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
        check_some_kernel(Call(query, key, value, mask, dropout_p, is_causal, enable_gqa))


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
        flash: Tensor = _flash_kernel(keys, *given, 0.0, is_causal, False, scale=scale)[0]
        return flash
    mask = _summand(mask, query.dtype)
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
    efficient: Tensor = _efficient_kernel(keys, *given, mask, True, 0.0, is_causal, scale=scale)[0]
    return efficient


def _summand(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What to add to the scores: of a mask of booleans, minus infinity where they are false."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    with torch._C.DisableTorchFunction():  # functions that users installed do not see it
        zero = torch.zeros((), dtype=dtype, device=mask.device)
        return torch.where(mask, zero, -math.inf)


# Kernels of the fused attention operators that CUDA has, computed by the host's.
#
# `scaled_dot_product_attention` on a device chooses the host's fused kernel (`attention`). Code of
# PyTorch that knows CUDA's operators by name asks for those: how DTensor shards them, and how
# `context_parallel` passes keys and values around. What CUDA's kernels hand to their backward pass
# beside the output is made here as far as the host's needs it: the logsumexp of each row of scores.

_host = overload("_scaled_dot_product_flash_attention_for_cpu")._handle.redispatch_boxed
_host_backward = overload(
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)._handle.redispatch_boxed
_flash_dtypes = (torch.float16, torch.bfloat16)
_efficient_dtypes = (*_flash_dtypes, torch.float32)


def _flash_attention(arguments: dict[str, Any]) -> None:
    """Four dimensions that agree, and something to attend to; the kernel walks by query's sizes."""
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return  # the kernel says so
    batch, heads, length, size = query.shape
    fits = key.shape[2] == value.shape[2] > 0 and heads > 0 and length > 0
    for tensor in (key, value):
        groups = tensor.shape[1]
        fits = fits and tensor.shape[0] == batch and tensor.shape[3] == size
        fits = fits and groups > 0 and heads % groups == 0
    shapes = {"query": query, "key": key, "value": value}
    if "grad_out" in arguments:
        for name, expected in (("grad_out", 4), ("out", 4), ("logsumexp", 3)):
            shapes[name] = arguments[name]
            fits = fits and arguments[name].shape == query.shape[:expected]
    if not fits:
        given = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in shapes.items())
        raise RuntimeError(
            "flash attention expects (batch, heads, length, size), the lengths of key and value "
            "equal and nothing empty, their heads to divide those of query, and in the backward "
            f"pass what the forward pass made of them, got {given}"
        )


def rescaled_qkv(arguments: dict[str, Any]) -> None:
    """Queries, keys and values of some batch, and a bias for each of their numbers."""
    qkv, bias = arguments["qkv"], arguments["qkv_bias"]
    if qkv.dim() != 3 or qkv.numel() == 0 or bias.shape != qkv.shape[2:]:
        refuse("_transform_bias_rescale_qkv", arguments, "qkv", "qkv_bias")


def _check(name: str, dtypes: Sequence[torch.dtype], dropout_p: float, **tensors: Tensor) -> None:
    """Raise for what CUDA's kernel does not take, or the host's cannot compute."""
    query = tensors["query"]
    if query.dtype not in dtypes:
        taken = ", ".join(map(str, dtypes))
        raise RuntimeError(f"{name} takes {taken} on CUDA, and query is {query.dtype}")
    if dropout_p:
        raise UnsupportedError(
            f"{name} with dropout_p={dropout_p} is not simulated: only "
            "torch.nn.functional.scaled_dot_product_attention drops out"
        )
    _flash_attention(tensors)


def _nothing_drawn() -> tuple[Tensor, Tensor]:
    """The seed and the offset of random numbers where there are none."""
    return torch.zeros((), dtype=torch.int64, device="cpu"), torch.zeros(
        (), dtype=torch.int64, device="cpu"
    )


def _flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    _check("flash attention", _flash_dtypes, dropout_p, query=query, key=key, value=value)
    out, sums = _host(HOST_KEYS, query, key, value, 0.0, is_causal, scale=scale)
    lengths = query.shape[2], key.shape[2]
    return out, sums, None, None, *lengths, *_nothing_drawn(), query.new_empty(0)


def _flash_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = {"grad_out": grad_out, "query": query, "key": key, "value": value}
    tensors |= {"out": out, "logsumexp": logsumexp}
    _check("flash attention", _flash_dtypes, dropout_p, **tensors)
    found: tuple[Tensor, Tensor, Tensor] = _host_backward(
        HOST_KEYS, *tensors.values(), 0.0, is_causal, scale=scale
    )
    return found


def _efficient_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    _check("memory efficient attention", _efficient_dtypes, dropout_p, query=query, key=key,
           value=value)  # fmt: skip
    out, sums = _host(
        HOST_KEYS, query, key, value, 0.0, is_causal, attn_mask=attn_bias, scale=scale
    )
    return out, sums, *_nothing_drawn()


def _efficient_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Tensor | None, ...]:
    tensors = {"grad_out": grad_out_, "query": query, "key": key, "value": value}
    tensors |= {"out": out, "logsumexp": logsumexp}
    _check("memory efficient attention", _efficient_dtypes, dropout_p, **tensors)
    if grad_input_mask[3]:
        raise UnsupportedError("the gradient of attn_bias is not computed in a fused kernel")
    grads = _host_backward(
        HOST_KEYS, *tensors.values(), 0.0, is_causal, attn_mask=attn_bias, scale=scale
    )
    return *grads, None


row("_scaled_dot_product_flash_attention", make=computed(_flash_forward))
row("_scaled_dot_product_flash_attention_backward", make=computed(_flash_backward))
row("_scaled_dot_product_efficient_attention", make=computed(_efficient_forward))
row("_scaled_dot_product_efficient_attention_backward", make=computed(_efficient_backward))
row("scaled_dot_product_attention", above_autograd=scaled_dot_product_attention)
row(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    checks=(_flash_attention,),
)
row("_fused_sdp_choice", kind="metadata")
row("_transform_bias_rescale_qkv", checks=(rescaled_qkv,))
