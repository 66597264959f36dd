"""Kernels of the fused attention operators that CUDA has, computed by the host's.

`scaled_dot_product_attention` on a device chooses the host's fused kernel (`attention`). Code of
PyTorch that knows CUDA's operators by name asks for those: how DTensor shards them, and how
`context_parallel` passes keys and values around. What CUDA's kernels hand to their backward pass
beside the output is made here as far as the host's needs it: the logsumexp of each row of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from simgpu._kernels import shape_checks
from simgpu._kernels.general import computed_kernel
from simgpu._kernels.overloads import overload
from simgpu._runtime.launch import HOST_KEYS
from simgpu.errors import UnsupportedError

Tensor = torch.Tensor
_host = overload("_scaled_dot_product_flash_attention_for_cpu")._handle.redispatch_boxed
_host_backward = overload(
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)._handle.redispatch_boxed
_flash_dtypes = (torch.float16, torch.bfloat16)
_efficient_dtypes = (*_flash_dtypes, torch.float32)


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
    shape_checks.flash_attention(tensors)


def _nothing_drawn() -> tuple[Tensor, Tensor]:
    """The seed and the offset of random numbers where there are none."""
    return torch.zeros((), dtype=torch.int64, device="cpu"), torch.zeros(
        (), dtype=torch.int64, device="cpu"
    )


def _flash(
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


def _efficient(
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


def _kernels() -> dict[str, Callable[..., Any]]:
    functions: dict[str, Callable[..., Any]] = {
        "_scaled_dot_product_flash_attention": _flash,
        "_scaled_dot_product_flash_attention_backward": _flash_backward,
        "_scaled_dot_product_efficient_attention": _efficient,
        "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    }
    return {name: computed_kernel(overload(name), each) for name, each in functions.items()}


KERNELS = _kernels()
