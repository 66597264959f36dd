"""CUDA's kernels of attention: flash, memory efficient and cuDNN's, computed on the host.

Each family has an operator that `scaled_dot_product_attention` calls, with dimensions (batch,
heads, length, size), and one of (batch, length, heads, size), which also takes sequences of
different lengths one after another (`cum_seq_q`). What they keep for their backward passes has the
shapes that CUDA gives it. The CPU's fused kernel computes where it can; it knows no dropout, window
or gradient of a mask, and one size of heads, and `_Attention` computes the rest in float32.

Source: aten/src/ATen/native/transformers/cuda (attention.cu, attention_backward.cu,
flash_attn/flash_api.cpp, mem_eff_attention) and torch/_meta_registrations.py of PyTorch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from simgpu._core import world
from simgpu._core.device import Device
from simgpu._core.launch import HOST_KEYS, launch
from simgpu._memory.ownership import adopt_all
from simgpu._ops.calls import Arguments, overload
from simgpu._ops.checks import refuse
from simgpu._ops.from_schema import computed, host_kernel
from simgpu._ops.table import PythonKernel, row
from simgpu._random import attention_masks
from simgpu._random.fill import Source
from simgpu._random.generator_state import Stream
from simgpu.errors import UnsupportedError

Tensor = torch.Tensor

_fused = overload("_scaled_dot_product_flash_attention_for_cpu")._handle.redispatch_boxed
_fused_backward = overload(
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)._handle.redispatch_boxed
_HALVES = (torch.float16, torch.bfloat16)
_HALVES_AND_FLOATS = (*_HALVES, torch.float32)
# A kernel's name, its dtypes, and what it says of others.
_FLASH = "flash attention", _HALVES, "FlashAttention only support fp16 and bf16 data type"
_EFFICIENT = (
    "memory efficient attention",
    _HALVES_AND_FLOATS,
    "Only fp32, half & bf16 supported at the moment",
)
_CUDNN = "cuDNN attention", _HALVES, "cuDNN attention takes torch.float16 and torch.bfloat16"
_LSE_ALIGNMENT = 32  # rows, of efficient attention
_TINY = torch.finfo(torch.float32).tiny
_BIAS_ALIGNMENT = 16  # elements of a row, of the gradient of a bias


class _Attention(NamedTuple):
    """Attention of dimensions (batch, heads, length, size), and its gradients.

    `bias` is added to the scores. `is_causal` and `allowed` (False) hide some: the former what
    comes after a query, both counted from the first. `keep` (False) drops weights; the others are
    multiplied by `factor`.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float | None = None
    bias: Tensor | None = None
    is_causal: bool = False
    allowed: Tensor | None = None
    keep: Tensor | None = None
    factor: float = 1.0

    def forward(self) -> tuple[Tensor, Tensor]:
        """The output, and the logarithm of the sum of exponentials of each row of scores."""
        self._check_shapes()
        if self._is_fused():
            out, sums = _fused(HOST_KEYS, *self[:3], 0.0, self.is_causal, **self._options())
            return out, sums
        scores, _, _, value = self._scores()
        if not scores.numel():
            shape = scores.shape[:-1]
            out = self.query.new_zeros((*shape, value.shape[-1]))
            return out, out.new_full(shape, math.inf, dtype=torch.float32)
        most = scores.amax(-1, keepdim=True)
        most.masked_fill_(most == -math.inf, 0)
        total = scores.sub_(most).exp_().sum(-1, keepdim=True)
        out = torch.matmul(self._dropped(scores), value).div_(total.clamp(min=_TINY))
        sums = torch.where(total > 0, most + total.log(), math.inf).squeeze(-1)
        return out.to(self.query.dtype), sums

    def backward(
        self, grad: Tensor, out: Tensor, sums: Tensor, of_bias: bool = False
    ) -> tuple[Tensor, ...]:
        """The gradients of query, key, value and scores; the last may be empty unless `of_bias`.

        Args:
            grad: of the output `out`.
            sums: what `forward` returned beside the output.
        """
        self._check_shapes(grad_out=grad, out=out, logsumexp=sums)
        if self._is_fused() and not of_bias:
            found: tuple[Tensor, ...] = _fused_backward(
                HOST_KEYS, grad, *self[:3], out, sums, 0.0, self.is_causal, **self._options()
            )
            return *found, sums.new_empty(0)
        scores, query, key, value = self._scores()
        weights = scores.sub_(sums.unsqueeze(-1)).exp_()
        grad = grad.float()
        of_weights = self._dropped(torch.matmul(grad, value.transpose(-2, -1)))
        total = (grad * out.float()).sum(-1, keepdim=True)
        of_scores = of_weights.sub_(total).mul_(weights)
        of_value = torch.matmul(self._dropped(weights).transpose(-2, -1), grad)
        of_query = torch.matmul(of_scores, key).mul_(self._scale())
        of_key = torch.matmul(of_scores.transpose(-2, -1), query).mul_(self._scale())
        return (
            of_query.to(self.query.dtype),
            _summed(of_key, self.key),
            _summed(of_value, self.value),
            of_scores,
        )

    def _check_shapes(self, **made: Tensor) -> None:
        """Raise where shapes do not fit: the CPU's kernel would read other memory."""
        query, key, value = self[:3]
        if 0 not in query.shape and 0 not in key.shape:
            _agree({"query": query, "key": key, "value": value, **made})

    def _is_fused(self) -> bool:
        """Whether the CPU's fused kernel computes it."""
        query, key, value = (tensor.shape for tensor in self[:3])
        plain = self.allowed is None and self.keep is None
        plain = plain and query[3] == value[3] and key[1] == value[1]
        scaled = self.scale is None or self.scale > 0  # it multiplies hidden scores, too
        return plain and scaled and 0 not in query and 0 not in key

    def _dropped(self, weights: Tensor) -> Tensor:
        """Weights, or their gradients, in place."""
        return weights if self.keep is None else weights.mul_(self.keep).mul_(self.factor)

    def _options(self) -> dict[str, Any]:
        return {"attn_mask": self.bias, "scale": self.scale}

    def _scale(self) -> float:
        return 1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale

    def _scores(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scores, query, key and value as floats, with as many heads as the query has."""
        query = self.query.float()
        heads = query.shape[1]
        key, value = (
            tensor.float().repeat_interleave(heads // max(tensor.shape[1], 1), 1)
            for tensor in (self.key, self.value)
        )
        scores = torch.matmul(query, key.transpose(-2, -1)).mul_(self._scale())
        if self.bias is not None:
            scores.add_(self.bias)
        hidden = None if self.allowed is None else ~self.allowed
        if self.is_causal:
            hidden = ~_seen(scores.shape[-2], scores.shape[-1], right=0, last=False)
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        return scores, query, key, value


def _summed(grad: Tensor, like: Tensor) -> Tensor:
    """The gradient of keys or values that are shared by several heads of queries."""
    batch, heads, length, size = like.shape
    if grad.shape[1] != heads:
        grad = grad.view(batch, heads, -1, length, size).sum(2)
    return grad.to(like.dtype)


def _seen(rows: int, columns: int, left: int = -1, right: int = -1, last: bool = True) -> Tensor:
    """Which keys (columns) each query (row) sees, of booleans.

    Args:
        left: how many keys before its own a query sees; all, if negative.
        right: how many after it.
        last: whether the last query's own key is the last, else the first query's is the first.
    """
    own = torch.arange(rows, device="cpu").unsqueeze(1) + (columns - rows if last else 0)
    place = torch.arange(columns, device="cpu") - own
    seen = torch.ones((rows, columns), dtype=torch.bool, device="cpu")
    if right >= 0:
        seen &= place <= right
    if left >= 0:
        seen &= place >= -left
    return seen


def _laid_out(out: Tensor, values: Tensor) -> Tensor:
    """`values` with the strides of `out`, which is new."""
    return values if values.stride() == out.stride() else out.copy_(values)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    return _laid_out(torch.empty_like(tensor), values)


def _dense(values: Tensor) -> Tensor:
    return _laid_out(values.new_empty(values.shape), values)


def _rows_first(values: Tensor) -> Tensor:
    """`values` with the strides of (batch, length, heads, size)."""
    batch, heads, length, size = values.shape
    return _laid_out(values.new_empty((batch, length, heads, size)).transpose(1, 2), values)


# Checks, and the seed and offset of dropout


def _agree(arguments: dict[str, Any]) -> None:
    """Four dimensions that agree, and something to attend to; kernels walk by the query's sizes."""
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return  # the kernel says so
    batch, heads, length, size = query.shape
    fits = key.shape[2] == value.shape[2] > 0 and heads > 0 and length > 0
    fits = fits and key.shape[3] == size
    for tensor in (key, value):
        groups = tensor.shape[1]
        fits = fits and tensor.shape[0] == batch and groups > 0 and heads % groups == 0
    shapes = {"query": query, "key": key, "value": value}
    if "grad_out" in arguments:
        made = batch, heads, length, value.shape[3]
        for name, expected in (("grad_out", made), ("out", made), ("logsumexp", made[:3])):
            shapes[name] = arguments[name]
            fits = fits and arguments[name].shape == expected
    if not fits:
        given = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in shapes.items())
        raise RuntimeError(
            "flash attention expects (batch, heads, length, size), the lengths of key and value "
            "equal and nothing empty, their heads to divide those of query, and in the backward "
            f"pass what the forward pass made of them, got {given}"
        )


def _of_one_size(arguments: dict[str, Any]) -> None:
    """What the CPU's kernel needs beside: heads of one size in all."""
    _agree(arguments)
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if query.dim() == key.dim() == value.dim() == 4 and query.shape[3] != value.shape[3]:
        refuse("flash attention", arguments, "query", "key", "value")


def rescaled_qkv(arguments: dict[str, Any]) -> None:
    """Queries, keys and values of some batch, and a bias for each of their numbers."""
    qkv, bias = arguments["qkv"], arguments["qkv_bias"]
    if qkv.dim() != 3 or qkv.numel() == 0 or bias.shape != qkv.shape[2:]:
        refuse("_transform_bias_rescale_qkv", arguments, "qkv", "qkv_bias")


def _check(
    kernel: tuple[str, Sequence[torch.dtype], str],
    tensors: Sequence[Tensor],
    debug_mask: bool = False,
) -> None:
    """Raise for what CUDA's kernel does not take, or is not simulated.

    `tensors` are query, key and value.
    """
    name, dtypes, refusal = kernel
    query, key, value = tensors
    if query.dtype not in dtypes:
        raise RuntimeError(f"{refusal}, got {query.dtype}")
    if debug_mask:
        raise UnsupportedError(f"{name} with return_debug_mask=True is not simulated")
    _agree({"query": query, "key": key, "value": value})


def _heads_first(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Views with the dimensions (batch, heads, length, size) of (batch, length, heads, size)."""
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


class _Drawn(NamedTuple):
    """Where the random numbers of dropout begin."""

    seed: int
    offset: int
    p: float

    @classmethod
    def from_source(cls, source: Source | torch.Generator | None, p: float, count: int) -> _Drawn:
        """Move a generator on by `count`; a host's generator gives a seed."""
        if source is None:
            return cls(0, 0, 0.0)
        if isinstance(source, Source):
            seed, place = source.stream.take(count)
            return cls(seed, 4 * place, p)
        drawn = torch.randint(2**62, (), generator=source, device="cpu")
        return cls(int(drawn), 0, p)

    @classmethod
    def from_tensors(cls, seed: Tensor, offset: Tensor, p: float) -> _Drawn:
        return cls(int(seed) % 2**64, int(offset) % 2**64, p) if p else cls(0, 0, 0.0)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Seed and offset as the backward pass of all but flash attention is given them."""
        seed = self.seed - 2**64 if self.seed >= 2**63 else self.seed  # as an int64
        return torch.tensor(seed, device="cpu"), torch.tensor(self.offset, device="cpu")

    def state(self) -> tuple[Tensor, Tensor]:
        """As that of flash attention is: in one tensor, and one that nothing reads."""
        both = torch.tensor([self.seed, self.offset], dtype=torch.uint64, device="cpu")
        return both, torch.zeros((), dtype=torch.uint64, device="cpu")

    def options(self, keep: Callable[..., Any], *sizes: int) -> dict[str, Any]:
        """What `_Attention` needs to drop weights: `keep` says which are kept."""
        if not self.p:
            return {}
        kept = torch.from_numpy(keep(self.seed, self.offset, self.p, *sizes))
        return {"keep": kept, "factor": math.inf if self.p == 1 else 1 / (1 - self.p)}


class _Sequences(NamedTuple):
    """Sequences of different lengths, one after another in (length, heads, size)."""

    query: Tensor
    key: Tensor
    value: Tensor
    cum_seq_q: Tensor
    cum_seq_k: Tensor | None
    used: Tensor | None = None
    pages: Tensor | None = None

    def each(self) -> Iterator[tuple[slice, slice, list[Tensor]]]:
        """Where a sequence is, its queries and its keys, and both with values as a batch of one."""
        starts = self.cum_seq_q.tolist()
        of_keys = starts if self.cum_seq_k is None else self.cum_seq_k.tolist()
        used = [None] * len(starts) if self.used is None else self.used.tolist()
        for number, begin in enumerate(starts[:-1]):
            place = slice(begin, starts[number + 1])
            there = slice(of_keys[number], of_keys[number + 1])
            if used[number] is not None:
                there = slice(there.start, there.start + used[number])
            parts = [self.query[place], *self._keys_and_values(number, there, used[number])]
            yield place, there, [part.transpose(0, 1).unsqueeze(0) for part in parts]

    def _keys_and_values(self, number: int, there: slice, used: int | None) -> list[Tensor]:
        if self.pages is None:
            return [self.key[there], self.value[there]]
        count = -(-used // self.key.shape[1]) if used is not None else self.pages.shape[1]
        chosen = self.pages[number, :count].long()
        return [pool[chosen].flatten(0, 1)[:used] for pool in (self.key, self.value)]

    def forward(self, attend: Callable[..., tuple[Tensor, Tensor]]) -> tuple[Tensor, list[Tensor]]:
        """The outputs one after another, and the sums of each sequence.

        `attend` is called with query, key, value and the number of the sequence.
        """
        out = self.query.new_zeros((*self.query.shape[:2], self.value.shape[-1]))
        sums = []
        for number, (place, _, parts) in enumerate(self.each()):
            found, of_rows = attend(*parts, number)
            out[place] = found.squeeze(0).transpose(0, 1)
            sums.append(of_rows.squeeze(0))
        return out, sums

    def backward(
        self, grad: Tensor, out: Tensor, sums: Sequence[Tensor], attend: Callable[..., _Attention]
    ) -> list[Tensor]:
        """The gradients of queries, keys and values, laid out as these are."""
        grads = [torch.zeros_like(tensor) for tensor in self[:3]]
        for number, (place, there, parts) in enumerate(self.each()):
            made, of_it = (each[place].transpose(0, 1).unsqueeze(0) for each in (out, grad))
            found = attend(*parts, number).backward(of_it, made, sums[number].unsqueeze(0))
            for whole, where, part in zip(grads, (place, there, there), found, strict=False):
                whole[where] = part.squeeze(0).transpose(0, 1)
        return grads


# Flash attention


class _Flash(NamedTuple):
    """The options of one call, but the tensors'."""

    drawn: _Drawn
    is_causal: bool
    scale: float | None
    left: int | None = None
    right: int | None = None
    most: int | None = None  # keys, in the longest of sequences of different lengths

    def attention(self, query: Tensor, key: Tensor, value: Tensor, first: int = 0) -> _Attention:
        """Of tensors of dimensions (batch, heads, length, size); `first` numbers the first.

        As on CUDA, windows and causal masks end at the last query and the last key.
        """
        batch, heads, rows, _ = query.shape
        columns = key.shape[2]
        options = self.drawn.options(
            functools.partial(attention_masks.flash, first=first), batch, heads, rows, columns
        )
        left, right = self._window(rows, columns)
        if left < 0 and right < 0:
            return _Attention(query, key, value, self.scale, **options)
        if left < 0 and right == 0 and rows == columns:
            return _Attention(query, key, value, self.scale, is_causal=True, **options)
        allowed = _seen(rows, columns, left, right)
        return _Attention(query, key, value, self.scale, allowed=allowed, **options)

    def _window(self, rows: int, columns: int) -> tuple[int, int]:
        """How many keys are seen before and after a query's own; -1: all."""
        most = columns if self.most is None else self.most
        left, right = (
            -1 if size is None or size >= most else size for size in (self.left, self.right)
        )
        if self.is_causal and rows > 1:
            right = 0
        return left, most if left >= 0 > right else right


def _flash_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    source: Any = None,
) -> tuple[Any, ...]:
    _check(_FLASH, (query, key, value), return_debug_mask)
    drawn = _Drawn.from_source(source, dropout_p, query.shape[0] * query.shape[1] * 32)
    out, sums = _Flash(drawn, is_causal, scale).attention(query, key, value).forward()
    lengths = query.shape[2], key.shape[2]
    made = _like(query, out), _dense(sums)
    return *made, None, None, *lengths, *drawn.state(), query.new_empty(0)


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
) -> tuple[Tensor, ...]:
    _check(_FLASH, (query, key, value))
    drawn = _of_state(philox_seed, dropout_p)
    attention = _Flash(drawn, is_causal, scale).attention(query, key, value)
    grads = attention.backward(grad_out, out, logsumexp)
    return tuple(map(_like, (query, key, value), grads))


def _of_state(state: Tensor, p: float) -> _Drawn:
    """What a forward pass of flash attention has drawn, by its first tensor."""
    if not p:
        return _Drawn(0, 0, 0.0)
    seed, offset = state.tolist()
    return _Drawn(seed, offset, p)


def _flash_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
    source: Any = None,
) -> tuple[Any, ...]:
    if alibi_slopes is not None:
        raise UnsupportedError("flash attention with alibi_slopes is not simulated")
    sizes = query.shape[0] if cum_seq_q is None else cum_seq_q.numel() - 1, query.shape[-2]
    drawn = _Drawn.from_source(source, dropout_p, sizes[0] * sizes[1] * 32)
    most = None if cum_seq_q is None else max_k
    flash = _Flash(drawn, is_causal, scale, window_size_left, window_size_right, most)
    if cum_seq_q is None:
        parts = _heads_first(query, key, value)
        _check(_FLASH, parts, return_debug_mask)
        out, sums = flash.attention(*parts).forward()
        out, sums = out.transpose(1, 2), _dense(sums)
    else:
        _check_packed(_HALVES, query, key, value, cum_seq_q, cum_seq_k, block_table)
        sequences = _Sequences(query, key, value, cum_seq_q, cum_seq_k, seqused_k, block_table)
        out, each = sequences.forward(lambda *given: flash.attention(*given).forward())
        sums = query.new_zeros((query.shape[1], query.shape[0]), dtype=torch.float32)
        covered = torch.cat(each, 1)
        sums[:, : covered.shape[1]] = covered
    return _like(query, out), sums, *drawn.state(), query.new_empty(0)


def _flash_attention_into(out: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As `_flash_attention_forward`, whose output is written to `out`; returns the sums."""
    found, sums, *_ = _flash_attention_forward(*args, **kwargs)
    out.copy_(found)
    return sums  # type: ignore[no-any-return]


def _check_packed(
    dtypes: Sequence[torch.dtype],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor | None,
    pages: Tensor | None,
) -> None:
    """Raise where sequences one after another do not fit together."""
    if query.dtype not in dtypes or not query.dtype is key.dtype is value.dtype:
        raise RuntimeError(
            f"attention takes {', '.join(map(str, dtypes))} on CUDA, and query, key and value are "
            f"{query.dtype}, {key.dtype} and {value.dtype}"
        )
    for name, starts, total in (("cum_seq_q", cum_seq_q, query), ("cum_seq_k", cum_seq_k, key)):
        if starts is None:
            continue
        if starts.dtype is not torch.int32:
            raise RuntimeError(f"{name} must have dtype int32, got {starts.dtype}")
        places = starts.tolist()
        most = places[-1] if pages is not None and total is key else len(total)
        if sorted(places) != places or places[0] or places[-1] > most:
            raise RuntimeError(
                f"{name} has to rise from 0 to at most {len(total)}, got {places[:20]}"
            )
    heads = query.shape[-2], key.shape[-2], value.shape[-2]
    if query.shape[-1] != key.shape[-1] or 0 in heads or heads[0] % heads[1] or heads[0] % heads[2]:
        refuse("attention", {"query": query, "key": key, "value": value}, "query", "key", "value")


def _flash_attention_backward(
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
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, ...]:
    drawn = _of_state(rng_state, dropout_p)
    most = None if cum_seq_q is None else max_k
    flash = _Flash(drawn, is_causal, scale, window_size_left, window_size_right, most)
    if cum_seq_q is None or cum_seq_k is None:
        parts = _heads_first(query, key, value)
        _check(_FLASH, parts)
        made = grad_out.transpose(1, 2), out.transpose(1, 2), logsumexp
        found = flash.attention(*parts).backward(*made)
        grads = [grad.transpose(1, 2) for grad in found[:3]]
    else:
        _check_packed(_HALVES, query, key, value, cum_seq_q, cum_seq_k, None)
        sums = [logsumexp[:, begin:end] for begin, end in pairwise(cum_seq_q.tolist())]
        sequences = _Sequences(query, key, value, cum_seq_q, cum_seq_k)
        grads = sequences.backward(grad_out, out, sums, flash.attention)
    return tuple(map(_like, (query, key, value), grads))


# Memory efficient attention


class _Efficient(NamedTuple):
    """The options of one call, but the tensors'."""

    drawn: _Drawn
    scale: float | None
    bias: Tensor | None = None
    mask_type: int = 0  # 1: causal from the first query and key, 2: to the last ones
    window: int | None = None
    lengths: tuple[int, int] = (0, 0)  # the longest of sequences of different lengths

    def attention(self, query: Tensor, key: Tensor, value: Tensor, first: int = 0) -> _Attention:
        """Of tensors of dimensions (batch, heads, length, size); `first` numbers the first."""
        batch, heads, rows, _ = query.shape
        columns = key.shape[2]
        options = self.drawn.options(
            functools.partial(self._kept, first), batch, heads, rows, columns
        )
        plain = _Attention(query, key, value, self.scale, self.bias, **options)
        last = self.mask_type == 2 and rows != columns
        if not (self.window or last):
            return plain._replace(is_causal=self.mask_type > 0)
        left = self.window - 1 if self.window else -1
        return plain._replace(allowed=_seen(rows, columns, left, right=0, last=last))

    def _kept(self, first: int, seed: int, offset: int, p: float, *sizes: int) -> Any:
        _, heads, rows, columns = sizes
        if self.lengths == (0, 0):
            return attention_masks.efficient(seed, offset, p, *sizes)
        room = self.lengths[0] * self.lengths[1]  # each head has that of the longest
        start = offset + first * heads * room
        kept = attention_masks.efficient(seed, start, p, heads, room)
        return kept[:, : rows * columns].reshape(1, heads, rows, columns)


def _padded_sums(sums: Tensor, wanted: bool) -> Tensor:
    """What efficient attention keeps: rows up to a multiple of 32, or none."""
    *shape, rows = sums.shape
    room = -(-rows // _LSE_ALIGNMENT) * _LSE_ALIGNMENT if wanted else 0
    padded = sums.new_zeros((*shape, room))
    if wanted:
        padded[..., :rows] = sums
    return padded


def _check_bias(bias: Tensor | None, query: Tensor, key: Tensor) -> None:
    if bias is None:
        return
    if bias.dtype is not query.dtype:
        raise RuntimeError("invalid dtype for bias - should match query's dtype")
    whole = *query.shape[:3], key.shape[2]
    if bias.shape != whole:
        raise RuntimeError(f"attn_bias: wrong shape {tuple(bias.shape)}, expected {whole}")


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
    source: Any = None,
) -> tuple[Tensor, ...]:
    _check(_EFFICIENT, (query, key, value))
    _check_bias(attn_bias, query, key)
    count = math.prod((*query.shape[:3], key.shape[2]))
    drawn = _Drawn.from_source(source, dropout_p, count)
    efficient = _Efficient(drawn, scale, attn_bias, int(is_causal))
    out, sums = efficient.attention(query, key, value).forward()
    return _rows_first(out), _padded_sums(sums, compute_log_sumexp), *drawn.tensors()


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
    sums = logsumexp[..., : query.shape[2]]
    _check(_EFFICIENT, (query, key, value))
    _check_bias(attn_bias, query, key)
    drawn = _Drawn.from_tensors(philox_seed, philox_offset, dropout_p)
    attention = _Efficient(drawn, scale, attn_bias, int(is_causal)).attention(query, key, value)
    of_bias = attn_bias is not None and grad_input_mask[3]
    *grads, scores = attention.backward(grad_out_, out, sums, of_bias)
    bias = _padded_bias(scores.to(query.dtype)) if of_bias else None
    return *map(_rows_first, grads), bias


def _padded_bias(grad: Tensor) -> Tensor:
    """The gradient of a bias, in rows that begin at multiples of 16 elements."""
    *shape, last = grad.shape
    room = -(-last // _BIAS_ALIGNMENT) * _BIAS_ALIGNMENT
    return grad.new_empty((*shape, room))[..., :last].copy_(grad)


def _efficient_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dropout_p: float,
    custom_mask_type: int,
    compute_log_sumexp: bool = False,
    *,
    scale: float | None = None,
    seqlen_k: Tensor | None = None,
    window_size: int | None = None,
    source: Any = None,
) -> tuple[Any, ...]:
    batch, rows, heads, _ = query.shape
    drawn = _Drawn.from_source(source, dropout_p, batch * heads * rows * key.shape[1])
    lengths = rows, key.shape[1]
    if cu_seqlens_q is None:
        parts = _heads_first(query, key, value)
        _check(_EFFICIENT, parts)
        _check_bias(bias, parts[0], parts[1])
        efficient = _Efficient(drawn, scale, bias, custom_mask_type, window_size)
        out, sums = efficient.attention(*parts).forward()
        out, sums = _dense(out.transpose(1, 2)), _padded_sums(sums, compute_log_sumexp)
        return out, sums, *drawn.tensors(), rows, max_seqlen_k or lengths[1]
    if bias is not None:
        raise RuntimeError("cu seqlen + bias not supported")
    packed = _packed(query, key, value, cu_seqlens_q, cu_seqlens_k, seqlen_k)
    lengths = max_seqlen_q or rows, max_seqlen_k or lengths[1]
    efficient = _Efficient(drawn, scale, None, custom_mask_type, window_size, lengths)
    out, each = packed.forward(lambda *given: efficient.attention(*given).forward())
    whole = query.new_zeros((len(each), heads, lengths[0]), dtype=torch.float32)
    for number, sums in enumerate(each):
        whole[number, :, : sums.shape[1]] = sums
    sums = _padded_sums(whole, compute_log_sumexp)
    return out.unsqueeze(0), sums, *drawn.tensors(), *lengths


def _packed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    used: Tensor | None = None,
) -> _Sequences:
    """Sequences of efficient attention, which are in a batch of one."""
    if query.shape[0] != 1:
        raise RuntimeError(f"cu_seqlen only supports batch_size=1, got {query.shape[0]}")
    query, key, value = query.squeeze(0), key.squeeze(0), value.squeeze(0)
    _check_packed(_HALVES_AND_FLOATS, query, key, value, cu_seqlens_q, cu_seqlens_k, None)
    return _Sequences(query, key, value, cu_seqlens_q, cu_seqlens_k, used)


def _efficient_attention_backward(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    logsumexp: Tensor,
    dropout_p: float,
    philox_seed: Tensor,
    philox_offset: Tensor,
    custom_mask_type: int,
    bias_requires_grad: bool,
    *,
    scale: float | None = None,
    num_splits_key: int | None = None,
    window_size: int | None = None,
    shared_storage_dqdkdv: bool = False,
) -> tuple[Tensor | None, ...]:
    drawn = _Drawn.from_tensors(philox_seed, philox_offset, dropout_p)
    of_bias = None
    if cu_seqlens_q is None:
        parts = _heads_first(query, key, value)
        _check(_EFFICIENT, parts)
        _check_bias(bias, parts[0], parts[1])
        efficient = _Efficient(drawn, scale, bias, custom_mask_type, window_size)
        wanted = bias is not None and bias_requires_grad
        made = grad_out_.transpose(1, 2), out.transpose(1, 2), logsumexp[..., : query.shape[1]]
        *grads, scores = efficient.attention(*parts).backward(*made, wanted)
        of_bias = _padded_bias(scores.to(query.dtype)) if wanted else None
        grads = [_dense(grad.transpose(1, 2)) for grad in grads]
    else:
        packed = _packed(query, key, value, cu_seqlens_q, cu_seqlens_k)
        lengths = max_seqlen_q, max_seqlen_k
        efficient = _Efficient(drawn, scale, None, custom_mask_type, window_size, lengths)
        rows = [end - begin for begin, end in pairwise(cu_seqlens_q.tolist())]
        sums = [logsumexp[number, :, :count] for number, count in enumerate(rows)]
        found = packed.backward(grad_out_.squeeze(0), out.squeeze(0), sums, efficient.attention)
        grads = [each.unsqueeze(0) for each in found]
    if shared_storage_dqdkdv:
        grads = list(torch.stack(grads, -3).unbind(-3))
    return *grads, of_bias


# cuDNN's attention


def _cudnn_bias(bias: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    if bias is None or bias.dim() == 4:
        return bias
    return bias.expand(query.shape[0], 1, query.shape[2], key.shape[2])


def _like_cudnn(query: Tensor, out: Tensor) -> Tensor:
    """The output with dimensions in the order of the query's strides."""
    if out.shape == query.shape:
        return _like(query, out)
    order = sorted(range(4), key=query.stride().__getitem__, reverse=True)
    return _laid_out(torch.empty_permuted(out.shape, order, dtype=out.dtype, device="cpu"), out)


def _cudnn_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    source: Any = None,
) -> tuple[Any, ...]:
    _check(_CUDNN, (query, key, value), return_debug_mask)
    drawn = _Drawn.from_source(source, dropout_p, math.prod((*query.shape[:3], key.shape[2])))
    bias = _cudnn_bias(attn_bias, query, key)
    efficient = _Efficient(drawn, scale, bias, int(is_causal))
    out, sums = efficient.attention(query, key, value).forward()
    lengths = query.shape[2], key.shape[2]
    return (
        _like_cudnn(query, out),
        _dense(sums).unsqueeze(-1),
        None,
        None,
        *lengths,
        *drawn.tensors(),
        None,
    )


def _cudnn_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    attn_bias: Tensor | None,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    sums = logsumexp.view(query.shape[:3])
    _check(_CUDNN, (query, key, value))
    drawn = _Drawn.from_tensors(philox_seed, philox_offset, dropout_p)
    bias = _cudnn_bias(attn_bias, query, key)
    efficient = _Efficient(drawn, scale, bias, int(is_causal))
    grads = efficient.attention(query, key, value).backward(grad_out, out, sums)
    return tuple(map(_like, (query, key, value), grads))


def _drawing(
    forward: Callable[..., Any],
) -> Callable[[torch._ops.OpOverload], PythonKernel]:
    """As `computed`; calls with dropout have the device's generator as the argument `source`."""

    def make(op: torch._ops.OpOverload) -> PythonKernel:
        at = [argument.name for argument in op._schema.arguments].index("dropout_p")
        kernel, reader = host_kernel(op, forward), Arguments(op)

        def run(*args: Any, **kwargs: Any) -> Any:
            index, host_args, host_kwargs = reader.read(args, kwargs)
            if args[at] if len(args) > at else kwargs.get("dropout_p"):
                host_kwargs["source"] = _source_of(world.device(index))
            return adopt_all(launch(kernel, index, host_args, host_kwargs), index)

        return run

    return make


def _source_of(device: Device) -> Source | torch.Generator:
    generator = device.generator
    if isinstance(generator, Stream):
        return Source(generator, device.resident_threads)
    return generator


row("_scaled_dot_product_flash_attention", make=_drawing(_flash_forward))
row("_scaled_dot_product_flash_attention_backward", make=computed(_flash_backward))
row("_flash_attention_forward", make=_drawing(_flash_attention_forward))
row("_flash_attention_forward_no_dropout_inplace", make=computed(_flash_attention_into))
row("_flash_attention_backward", make=computed(_flash_attention_backward))
row("_scaled_dot_product_efficient_attention", make=_drawing(_efficient_forward))
row("_scaled_dot_product_efficient_attention_backward", make=computed(_efficient_backward))
row("_efficient_attention_forward", make=_drawing(_efficient_attention_forward))
row("_efficient_attention_backward", make=computed(_efficient_attention_backward))
row("_scaled_dot_product_cudnn_attention", make=_drawing(_cudnn_forward))
row("_scaled_dot_product_cudnn_attention_backward", make=computed(_cudnn_backward))
row(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    checks=(_of_one_size,),
)
row("_transform_bias_rescale_qkv", checks=(rescaled_qkv,))
