"""Which of CUDA's fused kernels of attention would take a call, by dtype, mask, shape and model.

The numbers do not depend on it. It says where CUDA has no kernel, because a program allows only
some (`torch.nn.attention.sdpa_kernel`) or asks first (`can_use_flash_attention`). The rules are
those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp. No kernel is said to take nested
tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.backends import cuda
from torch.torch_version import TorchVersion

from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import world

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


def _flash(call: Call, capability: tuple[int, int]) -> str | None:
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


def _efficient(call: Call, capability: tuple[int, int]) -> str | None:
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
    "efficient": (cuda.mem_efficient_sdp_enabled, _efficient),
    "flash": (cuda.flash_sdp_enabled, _flash),
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
