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

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from simgpu._core import world
from simgpu._core.launch import HOST_KEYS, launch
from simgpu._memory.ownership import adopt_all
from simgpu._ops.calls import Arguments, overload
from simgpu._ops.from_schema import Call, KernelMaker, by_name, host_kernel, source_of
from simgpu._ops.rules import refuse
from simgpu._ops.table import PythonKernel, row
from simgpu._random import attention_masks
from simgpu._random.fill import Source
from simgpu.errors import UnsupportedError

Tensor = torch.Tensor

_fused = overload("_scaled_dot_product_flash_attention_for_cpu")._handle.redispatch_boxed
_fused_backward = overload(
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)._handle.redispatch_boxed
_HALVES = (torch.float16, torch.bfloat16)
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


def _in_rows(values: Tensor, multiple: int, after: float = 0.0) -> Tensor:
    """`values` with others after each row, up to a multiple of so many elements."""
    return _dense(torch.constant_pad_nd(values, [0, -values.shape[-1] % multiple], after))


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
    """Raise unless `qkv` is a batch with elements, whose rows have the shape of `qkv_bias`."""
    qkv, bias = arguments["qkv"], arguments["qkv_bias"]
    if qkv.dim() != 3 or qkv.numel() == 0 or bias.shape != qkv.shape[2:]:
        refuse("_transform_bias_rescale_qkv", arguments, "qkv", "qkv_bias")


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

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Seed and offset as the backward pass of all but flash attention is given them."""
        seed = self.seed - 2**64 if self.seed >= 2**63 else self.seed  # as an int64
        return torch.tensor(seed, device="cpu"), torch.tensor(self.offset, device="cpu")

    def state(self) -> tuple[Tensor, Tensor]:
        """As that of flash attention is: in one tensor, and one that nothing reads."""
        both = torch.tensor([self.seed, self.offset], dtype=torch.uint64, device="cpu")
        return both, torch.zeros((), dtype=torch.uint64, device="cpu")


# Calls, and the kernels that compute them

# What operators call arguments that most of them have by another name.
_NAMES = {
    "attn_bias": "bias",
    "cu_seqlens_k": "cum_seq_k",
    "cu_seqlens_q": "cum_seq_q",
    "custom_mask_type": "is_causal",  # 2: causal to the last query and key
    "grad_out_": "grad_out",
    "max_seqlen_k": "max_k",
    "max_seqlen_q": "max_q",
    "rng_state": "philox_seed",
    "seqlen_k": "seqused_k",
}


class _Call(Call):
    """A call by those names."""

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> _Call:
        """The call with query, key, value, output and its gradient changed."""
        names = ("query", "key", "value", "out", "grad_out")
        changed = {name: change(given) for name, given in vars(self).items() if name in names}
        return _Call(**{**vars(self), **changed})


def _swapped(tensor: Tensor) -> Tensor:
    """From (batch, heads, length, size) to (batch, length, heads, size), or back."""
    return tensor.transpose(1, 2)


class _Efficient:
    """Memory efficient attention, and a call of it; the other kernels differ as they say.

    Tensors have the dimensions (batch, length, heads, size). Sequences of different lengths are one
    after another in (length, heads, size), which operators of this kernel have in a batch of one.
    """

    name = "memory efficient attention"
    refusal = "Only fp32, half & bf16 supported at the moment"
    dtypes: tuple[torch.dtype, ...] = (*_HALVES, torch.float32)
    in_batch = True

    def __init__(self, call: _Call) -> None:
        """Raise for what the kernel does not take, or is not simulated."""
        if call.cum_seq_q is not None and self.in_batch:
            if call.bias is not None:
                raise RuntimeError("cu seqlen + bias not supported")
            if len(call.query) != 1:
                raise RuntimeError(f"cu_seqlen only supports batch_size=1, got {len(call.query)}")
            call = call.with_tensors(lambda tensor: tensor.squeeze(0))
        self.call = call
        self.tensors: tuple[Tensor, Tensor, Tensor] = call.query, call.key, call.value
        if call.cum_seq_q is None:
            if call.query.dtype not in self.dtypes:
                raise RuntimeError(f"{self.refusal}, got {call.query.dtype}")
            if call.return_debug_mask:
                raise UnsupportedError(f"{self.name} with return_debug_mask=True is not simulated")
            names = ("query", "key", "value")
            _agree(dict(zip(names, map(_swapped, self.tensors), strict=True)))
        else:
            self._check_sequences()
        self.bias: Tensor | None = self._bias()
        if call.philox_seed is None:
            self.drawn = _Drawn.from_source(call.source, call.dropout_p, self._count())
        elif call.dropout_p:
            self.drawn = _Drawn(*self._seed_and_offset(), call.dropout_p)
        else:
            self.drawn = _Drawn(0, 0, 0.0)

    def lengths(self) -> tuple[int, int]:
        """Those of the longest sequences of queries and of keys."""
        rows, columns = (tensor.shape[-3] for tensor in self.tensors[:2])
        if self.call.cum_seq_q is not None:
            rows = self.call.max_q or rows
        return rows, self.call.max_k or columns

    def _bias(self) -> Tensor | None:
        bias: Tensor | None = self.call.bias
        if bias is None:
            return None
        query, key, _ = self.tensors
        if bias.dtype is not query.dtype:
            raise RuntimeError("invalid dtype for bias - should match query's dtype")
        whole = *_swapped(query).shape[:3], key.shape[1]
        if bias.shape != whole:
            raise RuntimeError(f"attn_bias: wrong shape {tuple(bias.shape)}, expected {whole}")
        return bias

    def _count(self) -> int:
        """How far a call with dropout moves the generator on."""
        query, key, _ = self.tensors
        return math.prod((*query.shape[:-1], key.shape[-3]))

    def _seed_and_offset(self) -> tuple[int, int]:
        """What the forward pass has drawn."""
        return int(self.call.philox_seed) % 2**64, int(self.call.philox_offset) % 2**64

    def _window(self, rows: int, columns: int) -> tuple[int, int, bool]:
        """The other arguments of `_seen`."""
        mask_type, size = self.call.is_causal or 0, self.call.window_size
        return (size or 0) - 1, 0 if size or mask_type > 0 else -1, mask_type == 2

    def _kept(self, first: int, *sizes: int) -> Any:
        """Which weights dropout keeps of a sequence, or of all where there are none."""
        seed, offset, p = self.drawn
        if self.call.cum_seq_q is None:
            return attention_masks.efficient(seed, offset, p, *sizes)
        _, heads, rows, columns = sizes
        room = math.prod(self.lengths())  # each head has that of the longest
        kept = attention_masks.efficient(seed, offset + first * heads * room, p, heads, room)
        return kept[:, : rows * columns].reshape(1, heads, rows, columns)

    def _sums(self, number: int, place: slice) -> Tensor:
        """What the forward pass has kept of it."""
        sums: Tensor = self.call.logsumexp
        if self.call.cum_seq_q is not None:
            sums = sums[number]
        return sums[..., : place.stop - (place.start or 0)]

    def _attention(self, tensors: Iterable[Tensor], first: int = 0) -> _Attention:
        """Of tensors of dimensions (batch, heads, length, size); `first` numbers the first."""
        query, key, value = tensors
        batch, heads, rows, _ = query.shape
        columns, p = key.shape[2], self.drawn.p
        found = _Attention(query, key, value, self.call.scale, self.bias)
        if p:
            kept = torch.from_numpy(self._kept(first, batch, heads, rows, columns))
            found = found._replace(keep=kept, factor=math.inf if p == 1 else 1 / (1 - p))
        left, right, last = self._window(rows, columns)
        if left < 0 and right < 0:
            return found
        if left < 0 and right == 0 and not (last and rows != columns):
            return found._replace(is_causal=True)
        return found._replace(allowed=_seen(rows, columns, left, right, last))

    def forward(self) -> tuple[Tensor, list[Tensor]]:
        """The output, and the sums of each sequence, or all."""
        if self.call.cum_seq_q is None:
            out, sums = self._attention(map(_swapped, self.tensors)).forward()
            return _swapped(out), [sums]
        query, _, value = self.tensors
        whole, each = query.new_zeros((*query.shape[:2], value.shape[-1])), []
        for number, (place, _, parts) in enumerate(self._sequences()):
            out, sums = self._attention(parts, number).forward()
            whole[place] = out.squeeze(0).transpose(0, 1)
            each.append(sums.squeeze(0))
        return whole, each

    def backward(self, of_bias: bool = False) -> tuple[list[Tensor], Tensor | None]:
        """The gradients of queries, keys and values, laid out as these are, and of the scores."""
        grad, out = self.call.grad_out, self.call.out
        if self.call.cum_seq_q is None:
            attention = self._attention(map(_swapped, self.tensors))
            sums = self._sums(0, slice(self.tensors[0].shape[1]))
            *grads, scores = attention.backward(_swapped(grad), _swapped(out), sums, of_bias)
            return [*map(_swapped, grads)], scores
        grads = [torch.zeros_like(tensor) for tensor in self.tensors]
        for number, (place, there, parts) in enumerate(self._sequences()):
            of_it, made = (each[place].transpose(0, 1).unsqueeze(0) for each in (grad, out))
            sums = self._sums(number, place).unsqueeze(0)
            found = self._attention(parts, number).backward(of_it, made, sums)
            for whole, where, part in zip(grads, (place, there, there), found, strict=False):
                whole[where] = part.squeeze(0).transpose(0, 1)
        return grads, None

    def _sequences(self) -> Iterator[tuple[slice, slice, list[Tensor]]]:
        """Where a sequence is, its queries and its keys, and both with values as a batch of one."""
        starts = self.call.cum_seq_q.tolist()
        of_keys = starts if self.call.cum_seq_k is None else self.call.cum_seq_k.tolist()
        used = [None] * len(starts) if self.call.seqused_k is None else self.call.seqused_k.tolist()
        for number, begin in enumerate(starts[:-1]):
            place = slice(begin, starts[number + 1])
            there = slice(of_keys[number], of_keys[number + 1])
            if used[number] is not None:
                there = slice(there.start, there.start + used[number])
            parts = [self.tensors[0][place], *self._keys_and_values(number, there, used[number])]
            yield place, there, [part.transpose(0, 1).unsqueeze(0) for part in parts]

    def _keys_and_values(self, number: int, there: slice, used: int | None) -> list[Tensor]:
        _, *pools = self.tensors
        pages = self.call.block_table
        if pages is None:
            return [pool[there] for pool in pools]
        count = -(-used // pools[0].shape[1]) if used is not None else pages.shape[1]
        chosen = pages[number, :count].long()
        return [pool[chosen].flatten(0, 1)[:used] for pool in pools]

    def _check_sequences(self) -> None:
        """Raise where sequences one after another do not fit together."""
        call = self.call
        query, key, value = self.tensors
        if query.dtype not in self.dtypes or not query.dtype is key.dtype is value.dtype:
            raise RuntimeError(
                f"attention takes {', '.join(map(str, self.dtypes))} on CUDA, and query, key and "
                f"value are {query.dtype}, {key.dtype} and {value.dtype}"
            )
        for name, total in (("cum_seq_q", query), ("cum_seq_k", key)):
            starts = getattr(call, name)
            if starts is None:
                continue
            if starts.dtype is not torch.int32:
                raise RuntimeError(f"{name} must have dtype int32, got {starts.dtype}")
            places = starts.tolist()
            most = places[-1] if call.block_table is not None and total is key else len(total)
            if sorted(places) != places or places[0] or places[-1] > most:
                raise RuntimeError(
                    f"{name} has to rise from 0 to at most {len(total)}, got {places[:20]}"
                )
        heads, *shared = (tensor.shape[-2] for tensor in self.tensors)
        if query.shape[-1] != key.shape[-1] or any(not n or heads % n for n in (heads, *shared)):
            refuse("attention", vars(call), "query", "key", "value")


class _Flash(_Efficient):
    name = "flash attention"
    refusal = "FlashAttention only support fp16 and bf16 data type"
    dtypes = _HALVES
    in_batch = False

    def _count(self) -> int:
        starts, query = self.call.cum_seq_q, self.call.query
        count = len(query) if starts is None else starts.numel() - 1
        return count * int(query.shape[-2]) * 32

    def _seed_and_offset(self) -> tuple[int, int]:
        seed, offset = self.call.philox_seed.tolist()
        return seed, offset

    def _window(self, rows: int, columns: int) -> tuple[int, int, bool]:
        """As on CUDA, windows and causal masks end at the last query and the last key."""
        call = self.call
        most = columns if call.cum_seq_q is None else call.max_k
        left, right = (
            -1 if size is None or size >= most else size
            for size in (call.window_size_left, call.window_size_right)
        )
        if call.is_causal and rows > 1:
            right = 0
        return left, most if left >= 0 > right else right, True

    def _kept(self, first: int, *sizes: int) -> Any:
        return attention_masks.flash(*self.drawn, *sizes, first=first)

    def _sums(self, number: int, place: slice) -> Tensor:
        sums: Tensor = self.call.logsumexp
        return sums if self.call.cum_seq_q is None else sums[:, place]


class _Cudnn(_Efficient):
    name = "cuDNN attention"
    refusal = "cuDNN attention takes torch.float16 and torch.bfloat16"
    dtypes = _HALVES

    def _bias(self) -> Tensor | None:
        bias: Tensor | None = self.call.bias
        if bias is None or bias.dim() == 4:
            return bias
        query, key, _ = self.tensors
        return bias.expand(len(query), 1, query.shape[1], key.shape[1])

    def _sums(self, number: int, place: slice) -> Tensor:
        sums: Tensor = self.call.logsumexp
        return sums.view(_swapped(self.call.query).shape[:3])


# Operators. Those of `scaled_dot_product_attention` have (batch, heads, length, size).


def _flash(call: _Call) -> tuple[Any, ...]:
    if call.alibi_slopes is not None:
        raise UnsupportedError("flash attention with alibi_slopes is not simulated")
    kernel, query = _Flash(call), call.query
    out, each = kernel.forward()
    sums = _dense(each[0])
    if call.cum_seq_q is not None:
        sums = query.new_zeros((query.shape[1], query.shape[0]), dtype=torch.float32)
        covered = torch.cat(each, 1)
        sums[:, : covered.shape[1]] = covered
    return _like(query, out), sums, *kernel.drawn.state(), query.new_empty(0)


def _flash_into(call: _Call) -> Tensor:
    out, sums, *_ = _flash(call)
    call.out.copy_(out)
    return sums  # type: ignore[no-any-return]


def _flash_backward(call: _Call) -> tuple[Tensor, ...]:
    grads, _ = _Flash(call).backward()
    return tuple(map(_like, (call.query, call.key, call.value), grads))


def _flash_of_heads(call: _Call) -> tuple[Any, ...]:
    out, sums, *drawn = _flash(call.with_tensors(_swapped))
    return _swapped(out), sums, None, None, call.query.shape[2], call.key.shape[2], *drawn


def _flash_of_heads_backward(call: _Call) -> tuple[Tensor, ...]:
    return tuple(map(_swapped, _flash_backward(call.with_tensors(_swapped))))


def _efficient(call: _Call) -> tuple[Any, ...]:
    kernel = _Efficient(call)
    lengths = kernel.lengths()
    out, each = kernel.forward()
    sums = each[0]
    if call.cum_seq_q is not None:
        out = out.unsqueeze(0)
        sums = sums.new_zeros((len(each), out.shape[2], lengths[0]))
        for number, found in enumerate(each):
            sums[number, :, : found.shape[1]] = found
    if call.compute_log_sumexp:
        sums = _in_rows(sums, _LSE_ALIGNMENT, math.inf)
    else:
        sums = sums.new_empty((*sums.shape[:-1], 0))
    return _dense(out), sums, *kernel.drawn.tensors(), *lengths


def _efficient_backward(call: _Call) -> tuple[Any, ...]:
    wanted = call.bias_requires_grad or bool(call.grad_input_mask and call.grad_input_mask[3])
    of_bias = wanted and call.bias is not None
    grads, scores = _Efficient(call).backward(of_bias)
    packed = call.cum_seq_q is not None
    grads = [grad.unsqueeze(0) if packed else _dense(grad) for grad in grads]
    if call.shared_storage_dqdkdv:
        grads = list(torch.stack(grads, -3).unbind(-3))
    if scores is None or not of_bias:
        return *grads, None
    # Its rows begin at multiples of so many elements.
    bias = _in_rows(scores.to(call.query.dtype), _BIAS_ALIGNMENT)[..., : scores.shape[-1]]
    return *grads, bias


def _efficient_of_heads(call: _Call) -> tuple[Any, ...]:
    out, *others = _efficient(call.with_tensors(_swapped))
    return _swapped(out), *others[:3]


def _efficient_of_heads_backward(call: _Call) -> tuple[Any, ...]:
    *grads, bias = _efficient_backward(call.with_tensors(_swapped))
    return *map(_swapped, grads), bias


def _cudnn(call: _Call) -> tuple[Any, ...]:
    kernel, query = _Cudnn(call.with_tensors(_swapped)), call.query
    out, (sums,) = kernel.forward()
    out = _swapped(out)
    if out.shape == query.shape:
        out = _like(query, out)
    else:  # with dimensions in the order of the query's strides
        order = sorted(range(4), key=query.stride().__getitem__, reverse=True)
        whole = torch.empty_permuted(out.shape, order, dtype=out.dtype, device="cpu")
        out = _laid_out(whole, out)
    sums, lengths = _dense(sums).unsqueeze(-1), (query.shape[2], call.key.shape[2])
    return out, sums, None, None, *lengths, *kernel.drawn.tensors(), None


def _cudnn_backward(call: _Call) -> tuple[Tensor, ...]:
    grads, _ = _Cudnn(call.with_tensors(_swapped)).backward()
    tensors = call.query, call.key, call.value
    return tuple(_like(x, _swapped(grad)) for x, grad in zip(tensors, grads, strict=True))


def _kernel(compute: Callable[[_Call], Any], draws: bool = False) -> KernelMaker:
    """What makes a kernel that has the host `compute` a call.

    With dropout, a call of what `draws` has the device's generator as the argument `source`.
    """

    def make(op: torch._ops.OpOverload) -> PythonKernel:
        def renamed(call: Call) -> Any:
            return compute(_Call(**{_NAMES.get(name, name): x for name, x in vars(call).items()}))

        kernel, reader = host_kernel(op, by_name(op, renamed)), Arguments(op)
        dropout = by_name(op, lambda call: call.dropout_p)

        def run(*args: Any, **kwargs: Any) -> Any:
            index, host_args, host_kwargs = reader.read(args, kwargs)
            if draws and dropout(*args, **kwargs):
                host_kwargs["source"] = source_of(world.device(index))
            return adopt_all(launch(kernel, index, host_args, host_kwargs), index)

        return run

    return make


row("_scaled_dot_product_flash_attention", make=_kernel(_flash_of_heads, draws=True))
row("_scaled_dot_product_flash_attention_backward", make=_kernel(_flash_of_heads_backward))
row("_flash_attention_forward", make=_kernel(_flash, draws=True))
row("_flash_attention_forward_no_dropout_inplace", make=_kernel(_flash_into))
row("_flash_attention_backward", make=_kernel(_flash_backward))
row("_scaled_dot_product_efficient_attention", make=_kernel(_efficient_of_heads, draws=True))
row("_scaled_dot_product_efficient_attention_backward", make=_kernel(_efficient_of_heads_backward))
row("_efficient_attention_forward", make=_kernel(_efficient, draws=True))
row("_efficient_attention_backward", make=_kernel(_efficient_backward))
row("_scaled_dot_product_cudnn_attention", make=_kernel(_cudnn, draws=True))
row("_scaled_dot_product_cudnn_attention_backward", make=_kernel(_cudnn_backward))
row(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
    checks=(_of_one_size,),
)
row("_transform_bias_rescale_qkv", checks=(rescaled_qkv,))
