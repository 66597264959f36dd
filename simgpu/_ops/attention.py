"""`scaled_dot_product_attention`: CUDA's operator for the kernel that CUDA takes, or its steps.

PyTorch looks up in a table of C++ whether a device has fused kernels. Python cannot add to it, so
on a simulated device PyTorch would always compute attention step by step. Here CUDA's choice comes
first, and then the call that CUDA makes: modes, autograd and the profiler see its operator, whose
kernel is in `attention_kernels`.

Which kernel takes a call depends on dtypes, shapes, strides and mask, on what a program allows
(`torch.nn.attention.sdpa_kernel`), on the model of the device and on the release of PyTorch. A
kernel asks its rules one after another, and warns in PyTorch's words of the first that refuses. No
kernel takes nested tensors here.

Source: aten/src/ATen/native/transformers/attention.cpp, cuda/sdp_utils.cpp and sdp_utils_cpp.h of
PyTorch.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.backends import cuda
from torch.nn.attention import SDPBackend
from torch.torch_version import TorchVersion

from simgpu._core import world
from simgpu._core.launch import HOST_KEYS
from simgpu._ops import attention_kernels  # noqa: F401  # declares the rows of the kernels
from simgpu._ops.calls import overload
from simgpu._ops.dtypes import HALVES, SINCE_2_14, name_of
from simgpu._ops.from_schema import by_name
from simgpu._ops.table import Keys, row
from simgpu._util.naming import DEVICE_TYPE

Tensor = torch.Tensor
Capability = tuple[int, int]
MATH = SDPBackend.MATH.value
FLASH = SDPBackend.FLASH_ATTENTION.value
EFFICIENT = SDPBackend.EFFICIENT_ATTENTION.value
CUDNN = SDPBackend.CUDNN_ATTENTION.value

_LARGEST = 256  # head size of flash attention
_LARGEST_OF_CUDNN = 128
# Since 2.14, efficient attention shares the heads of keys between queries, and every kernel shares
# a single one, also where the call does not ask for it (enable_gqa).
_SHARES_HEADS = SINCE_2_14
_ASKS_FOR_ALIGNED = SINCE_2_14  # before, such a call failed in the kernel
# Three dimensions are a batch of one; before, kernels were chosen only for four dimensions.
_FUSES_THREE_DIMENSIONS = SINCE_2_14
# Before 2.12, cuDNN took any dropout_p: a recording of an H200 shows it of 2.11.
_ROUNDS_DROPOUT = TorchVersion(torch.__version__) < "2.12"
_DEFAULT_ORDER = [FLASH, EFFICIENT, MATH, CUDNN, SDPBackend.OVERRIDEABLE.value]
_CUDNN_FIRST = [CUDNN, FLASH, EFFICIENT, MATH]


class Call(NamedTuple):
    """A call of attention, with the names of `torch.backends.cuda.SDPAParams`."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool


Rule = Callable[[Call, Capability], str | None]


def is_training(call: Call) -> bool:
    """Whether autograd will ask for a gradient of query, key or value."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in call[:3])


def _each(call: Call, name: str, show: Callable[[Tensor], object]) -> str:
    """What `show` says of each tensor: "Query.name: 1, Key.name: 2, Value.name: 3"."""
    named = zip(("Query", "Key", "Value"), call[:3], strict=True)
    return ", ".join(f"{tensor}{name}: {show(value)}" for tensor, value in named)


def _sizes(call: Call) -> str:
    return _each(call, ".sizes()", lambda tensor: list(tensor.shape))


# Rules of several kernels.


def _on_gpu(call: Call) -> str | None:
    if call.query.device.type == DEVICE_TYPE:
        return None
    query, key, value = (tensor.device for tensor in call[:3])
    return (
        f"All tensors need to be on cuda device. Got query on device: {query}, key on device: "
        f"{key}, value on device: {value}"
    )


def _four_dims(call: Call, _: Capability) -> str | None:
    if any(tensor.is_nested for tensor in call[:3]):
        return "Nested tensors are not simulated for fused kernels."
    if all(tensor.dim() == 4 for tensor in call[:3]):
        return None
    return (
        "All fused kernels requires query, key and value to be 4 dimensional, but got "
        f"{_each(call, ' dim', Tensor.dim)} instead."
    )


def _dtypes(call: Call, capability: Capability, taken: tuple[torch.dtype, ...]) -> str | None:
    query, key, value = (tensor.dtype for tensor in call[:3])
    if capability < (8, 0):  # which computes with no bfloat16
        taken = tuple(each for each in taken if each is not torch.bfloat16)
    if query is key is value and query in taken:
        return None
    return (
        f"Expected query, key and value to all be of dtype: {{{', '.join(map(name_of, taken))}}}. "
        f"Got Query dtype: {_as_cpp(query)}, Key dtype: {_as_cpp(key)}, and Value dtype: "
        f"{_as_cpp(value)} instead."
    )


def _as_cpp(dtype: torch.dtype) -> str:
    name = name_of(dtype)
    return f"c10::{name}" if dtype in HALVES else name.lower()


def _heads(call: Call, _: Capability, grouped: bool = True, apart: bool = False) -> str | None:
    """The rule of batches and numbers of heads.

    Args:
        grouped: whether the kernel shares heads of keys and values between those of queries.
        apart: whether it does so where keys and values have different numbers of them.
    """
    batches = {tensor.shape[0] for tensor in call[:3]}
    query, key, value = (tensor.shape[1] for tensor in call[:3])
    if len(batches) > 1:
        return f"{_SAME.format('batch_size')} {_sizes(call)}{_BROADCAST}"
    if query == key == value or (_SHARES_HEADS and query and key == value == 1):
        return None
    if not (call.enable_gqa and grouped):
        return f"{_SAME.format('num_heads')} {_sizes(call)}{_BROADCAST}"
    if key != value and not apart:
        return (
            "Both fused kernels require key and value to have the same num_heads and "
            f"batch_size but got: {_sizes(call)} instead."
        )
    if 0 in (key, value) or query % key or query % value:
        return (
            "The number of heads in key/value must divide number of heads in query. Got "
            f"{_sizes(call)} instead."
        )
    return None


_SAME = "For dense input, both fused kernels require query, key and value to have the same {}."
_BROADCAST = (
    " instead. To broadcast dense inputs, try using unsqueeze and expand_to before passing them "
    "into the kernel."
)


def _lengths(call: Call, _: Capability) -> str | None:
    if call.query.shape[2] and call.key.shape[2]:
        return None
    return "All fused kernels do not support zero seq_len_q or seq_len_kv."


def _strides(call: Call, _: Capability, one_is_any: bool = True) -> str | None:
    """The rule of the last dimension; of heads of size 1 it may have any stride (`one_is_any`)."""
    mask, of_mask = call.attn_mask, 1
    if mask is not None and mask.dim():
        of_mask = mask.stride(-1)
    dense = all(tensor.stride(-1) == 1 for tensor in call[:3])
    if (dense or (one_is_any and call.query.shape[-1] == 1)) and of_mask == 1:
        return None
    got = _each(call, ".stride(-1)", lambda tensor: tensor.stride(-1))
    if mask is not None:
        got += f", Attn_mask.stride(-1): {of_mask}"
    return f"All fused kernels require the last dimension of the input to have stride 1. Got {got}"


def _architecture(
    _: Call, capability: Capability, kernel: str, least: Capability = (8, 0)
) -> str | None:
    if least <= capability <= (12, 1):
        return None
    return (
        f"{kernel} only supports gpu architectures in the range [sm{least[0]}{least[1]}, sm121]. "
        f"Attempting to run on a sm {capability[0]}.{capability[1]} gpu."
    )


# Rules of flash attention.


def _no_mask(call: Call, _: Capability) -> str | None:
    if call.attn_mask is None:
        return None
    return "Flash Attention does not support non-null attn_mask."


def _equal_sizes(call: Call, _: Capability) -> str | None:
    query, key, value = (tensor.shape[-1] for tensor in call[:3])
    if query == key == value <= _LARGEST:
        return None
    return (
        "Flash attention requires q,k,v to have the same last dimension and to be less than or "
        f"equal to {_LARGEST}. Got {_each(call, '.size(-1)', lambda x: x.shape[-1])} instead."
    )


def _gradient_of_large_heads(call: Call, capability: Capability) -> str | None:
    size = call.query.shape[-1]
    small = (8, 6) <= capability <= (8, 9) or capability >= (12, 0)
    if not (small and size > 192 and is_training(call) and (call.dropout or size <= 224)):
        return None
    return (
        "Flash attention currently doesn't support training with head_dim ∈ (192, 224] or "
        "(head_dim ∈ (224, 256] and dropout > 0.0) on gpu architectures in the range[sm86, sm89]."
        f"Attempting to run with dropout set to: {call.dropout}and head_dim: {size} on a sm "
        f"{capability[0]}.{capability[1]} gpu."
    )


def _square_if_causal(call: Call, _: Capability) -> str | None:
    query, key = call.query.shape[2], call.key.shape[2]
    if not call.is_causal or query == key:
        return None
    return (
        "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. Got "
        f"seqlen_q: {query} seqlen_k: {key}. If you would like to use causal attention with "
        "non-square masks, please see CausalAttnMask."
    )


# Rules of efficient attention.


def _aligned_sizes(call: Call, capability: Capability) -> str | None:
    sizes = call.query.shape[-1], call.value.shape[-1]
    aligned = _alignment(call, capability)
    if call.key.shape[-1] == sizes[0] and not any(size % aligned or not size for size in sizes):
        return None
    return (
        f"Mem efficient attention requires last dimension of inputs to be divisible by {aligned}. "
        f"Got {_each(call, '.size(-1)', lambda x: x.shape[-1])} instead."
    )


def _alignment(call: Call, capability: Capability) -> int:
    half = call.query.dtype in HALVES
    if capability < (8, 0):
        return 8 if half and capability >= (7, 0) else 1
    return 8 if half else 4


def _aligned_memory(call: Call, capability: Capability) -> str | None:
    if not _ASKS_FOR_ALIGNED or capability < (8, 0):
        return None
    nbytes = _alignment(call, capability) * call.query.itemsize
    offsets = [
        tensor.storage_offset() * tensor.itemsize % nbytes if tensor.numel() else 0
        for tensor in call[:3]
    ]
    if not any(offsets):
        return None
    return (
        "Mem efficient attention on sm80 or newer requires q, k, and v storage offsets * "
        f"element_size to be aligned to {nbytes} bytes. Got {offsets} bytes past that."
    )


# Rules of cuDNN.


def _deterministic(_: Call, __: Capability) -> str | None:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if warns or not torch.are_deterministic_algorithms_enabled():
        return None
    return "cuDNN SDPA is not deterministic."


def _mask_of_cudnn(call: Call, _: Capability) -> str | None:
    mask = call.attn_mask
    if mask is None:
        return None
    whole = (*call.query.shape[:3], call.key.shape[2])
    fits = mask.dim() in (2, 4) and all(
        size in (1, full) for size, full in zip(mask.shape, whole[-mask.dim() :], strict=True)
    )
    if fits and not mask.requires_grad:
        return None
    return (
        "Please use the following attn mask shapes: 2d - ({Q_seq_len, 1}  x {KV_seq_len, 1}); "
        "4d - ({Batch, 1} x {Num_heads, 1} x {Q_seq_len, 1}  x {KV_seq_len, 1})"
    )


def _dropout_of_cudnn(call: Call, _: Capability) -> str | None:
    if _ROUNDS_DROPOUT or not call.dropout * 16 % 1:
        return None
    return (
        "cuDNN dropout probability resolution is limited to 1/16.Use a dropout probability that is "
        "a multiple of 1/16 to select the cuDNN backend"
    )


def _shapes_of_cudnn(call: Call, capability: Capability) -> str | None:
    sizes = call.query.shape[-1], call.value.shape[-1]
    wide = sizes == (192, 128) and (capability == (9, 0) or capability[0] == 10)
    if not wide and max(sizes) > _LARGEST_OF_CUDNN:
        return f"head_dim should be no more than {_LARGEST_OF_CUDNN}"
    if any(size % 8 for size in sizes):
        return "head_dim should be a multiple of 8"
    if call.key.shape[2] == 1:
        return "cudnn SDPA does not support key/value sequence length 1."
    if call.dropout and call.query.shape[2] == 1:
        return "cudnn SDPA does not support query sequence length 1 with dropout."
    return None


# Each kernel: whether a program allows it, what PyTorch warns where it does not, and its rules.
_HALVES = partial(_dtypes, taken=(torch.float16, torch.bfloat16))
_AND_FLOATS = partial(_dtypes, taken=(torch.float16, torch.float32, torch.bfloat16))
_KERNELS: dict[int, tuple[Callable[[], bool], str, tuple[Rule, ...]]] = {
    EFFICIENT: (
        cuda.mem_efficient_sdp_enabled,
        "Memory Efficient attention has been runtime disabled.",
        (
            partial(_architecture, kernel="Mem Efficient Attention", least=(5, 0)),
            *(_four_dims, _aligned_sizes, _aligned_memory, _lengths),
            *(partial(_strides, one_is_any=False), partial(_heads, grouped=_SHARES_HEADS)),
            _AND_FLOATS,
        ),
    ),
    FLASH: (
        cuda.flash_sdp_enabled,
        "Flash attention has been runtime disabled.",
        (
            *(_four_dims, _no_mask, _equal_sizes),
            partial(_architecture, kernel="Flash attention"),
            *(_gradient_of_large_heads, _square_if_causal, _HALVES, _heads, _lengths, _strides),
        ),
    ),
    CUDNN: (
        cuda.cudnn_sdp_enabled,
        "cuDNN attention has been runtime disabled.",
        (
            *(_four_dims, _deterministic, _HALVES, _mask_of_cudnn),
            partial(_architecture, kernel="cuDNN MHA"),
            *(_dropout_of_cudnn, _lengths, _strides, partial(_heads, apart=True)),
            _shapes_of_cudnn,
        ),
    ),
}
_WHOSE = {EFFICIENT: "Memory efficient", FLASH: "Flash attention", CUDNN: "cuDNN attention"}
_ENABLED = [is_enabled for is_enabled, _, _ in _KERNELS.values()]
_math_is_enabled: Callable[[], bool] = cuda.math_sdp_enabled
_order: Callable[[], list[int]] = torch._C._get_sdp_priority_order


def refusal(kernel: int, call: Call) -> str | None:
    """Why FLASH, EFFICIENT or CUDNN does not take a call; None where it does."""
    is_enabled, disabled, rules = _KERNELS[kernel]
    elsewhere = disabled if not is_enabled() else _on_gpu(call)
    if elsewhere is not None:
        return elsewhere
    capability = _capability(call)
    return next((why for rule in rules if (why := rule(call, capability)) is not None), None)


def _capability(call: Call) -> Capability:
    return world.device(world.resolve(call.query.device)).model.compute_capability


def can_use(kernel: int, params: cuda.SDPAParams, debug: bool = False) -> bool:
    """`torch.backends.cuda.can_use_flash_attention` and others; with `debug` a warning says why."""
    why = refusal(kernel, Call(*(getattr(params, name) for name in Call._fields)))
    if debug and why is not None:
        warnings.warn(why, stacklevel=2)
    return why is None


def chosen(call: Call) -> int:
    """The kernel that CUDA takes for a call: MATH, FLASH, EFFICIENT or CUDNN.

    Raises RuntimeError, after warnings that say why, where a program allows none that takes it.
    """
    if not any(is_enabled() for is_enabled in (_math_is_enabled, *_ENABLED)):
        raise RuntimeError(
            "No viable backend for scaled_dot_product_attention was found. This is likely due to "
            "turning off both the math kernel and the fused kernels."
        )
    order = _order()
    if order == _DEFAULT_ORDER and _prefers_cudnn(call):
        order = _CUDNN_FIRST
    for kernel in order:
        if kernel == MATH:
            if _math_is_enabled():
                return MATH
        elif kernel in _KERNELS and refusal(kernel, call) is None:
            return kernel
    for kernel, name in _WHOSE.items():
        warnings.warn(f"{name} kernel not used because:", stacklevel=3)
        warnings.warn(refusal(kernel, call) or "", stacklevel=3)
    raise RuntimeError("No available kernel. Aborting execution.")


def _prefers_cudnn(call: Call) -> bool:
    """Whether cuDNN comes first: on Hopper and data-center Blackwell, with a cuDNN since 9.15.1.

    PyTorch decides it once in a process, for the device that is current; here it is the call's.
    """
    disliked = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1"
    return not disliked and _capability(call)[0] in (9, 10)


# The operator, and the call that CUDA makes for a kernel.

# PyTorch's own code for this operator is the same under every key; the CPU's finds it.
_in_steps = overload("scaled_dot_product_attention")._handle.redispatch_boxed
_flash = overload("_scaled_dot_product_flash_attention")
_efficient = overload("_scaled_dot_product_efficient_attention")
_cudnn = overload("_scaled_dot_product_cudnn_attention")
_pad, _slice = overload("constant_pad_nd"), overload("slice.Tensor")
_scalar, _where = overload("scalar_tensor"), overload("where.ScalarSelf")
_ALIGNMENT = 8  # of the head sizes of flash attention, and of the rows of a mask


def scaled_dot_product_attention(
    _: Keys,
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


def _fused_sdp_choice(call: Any) -> int:
    """`torch._fused_sdp_choice`: the number of an SDPBackend."""
    options = call.attn_mask, call.dropout_p or 0.0, bool(call.is_causal), bool(call.enable_gqa)
    return _kernel_of(Call(call.query, call.key, call.value, *options))


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
row("_fused_sdp_choice", make=lambda op: by_name(op, _fused_sdp_choice))
