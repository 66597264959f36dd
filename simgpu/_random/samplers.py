"""Kernels that draw: in place, dropout, `torch.normal`, `multinomial`, `randperm`, `rrelu`.

Each function takes the operator's arguments, with a CPU tensor and with a `Source` as the
generator; the dispatch keys come first, as for every host kernel. What an operator refuses, it
refuses in PyTorch's words: the CPU's kernel is called on one element, and has the same checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch

from simgpu._random import distributions, philox
from simgpu._random.distributions import Toss, below, first_failure, from_to
from simgpu._random.fill import Kind, Source, draw, fill, refuse_overlap
from simgpu._random.generator_state import Stream
from simgpu._random.layout import STEP, Launch, is_dense, launch_of
from simgpu._random.philox import MOST_THREADS, Array, Floats, multiply_add, unit_float

# The mask of dropout, by the kernels of ATen/native/cuda/Dropout.cu.
#
# Where the tensor is dense, a thread loads up to 16 bytes at once: 2, 4 or 8 elements that are side
# by side, as many as its address and size allow. Each call of a thread then draws four words, or
# eight for 8 elements; with 2 elements, the other two words are thrown away. Otherwise elements are
# spread over threads as in all other draws, in the order of their indices. The generator moves on
# by what the last kernel would need, so small masks of 8 elements a thread share words with the
# next.

_UNROLL = 4
_LOAD = 16  # bytes

Tensor = torch.Tensor


def dropout_parameters(p: float, dtype: torch.dtype) -> tuple[float, float]:
    """How likely the kernel keeps an element, and what it multiplies it with: floats, as it has."""
    if dtype is torch.float64:
        return 1.0 - p, 1.0 / (1.0 - p)
    keep = np.float32(1.0 - p)
    return float(keep), float(np.float32(1.0 / float(keep)))


def fill_mask(mask: Tensor, like: Tensor, keep: float, source: Source) -> None:
    """Write to `mask` which elements of `like` are kept, each with probability `keep`.

    Both are CPU tensors of one shape with at least one element; `mask` has booleans and as dense
    as `like` is. `keep` is one of `parameters`.
    """
    numel = like.numel()
    launch = launch_of(numel, _UNROLL, source.resident)
    seed, place = source.stream.take(launch.increment)
    limit = first_failure(keep)
    at_once = 1
    if like.is_contiguous() or is_dense(like.shape, like.stride()):
        # As many elements as a thread loads: its address and the size have to be multiples.
        at_once = _LOAD // like.itemsize
        while at_once > 1 and (like.data_ptr() % (at_once * like.itemsize) or numel % at_once):
            at_once //= 2
    if at_once > 1:
        row = mask if mask.dim() == 1 and mask.is_contiguous() else mask.as_strided((numel,), (1,))
        _fill_side_by_side(row.numpy(), seed, place, launch, at_once, limit, source.stream)
    elif mask.is_contiguous():
        draw(mask.numpy().reshape(-1), seed, place, launch, Toss(limit), source.stream)
    else:
        array = np.empty(numel, np.bool_)
        draw(array, seed, place, launch, Toss(limit), source.stream)
        mask.copy_(torch.from_numpy(array).view(mask.shape))


def _fill_side_by_side(
    mask: Array, seed: int, place: int, launch: Launch, at_once: int, limit: int, stream: Stream
) -> None:
    """The mask by threads that take `at_once` elements which are side by side."""
    groups = mask.reshape(-1, at_once)
    if at_once == 4 and len(groups) <= min(MOST_THREADS, launch.threads):
        below(stream.ahead.drawn(4, seed, place, len(groups))[: len(groups)], limit, groups)
        return
    blocks = max(at_once // 4, 1)  # of words in each call
    for call in range(-(-len(groups) // launch.threads)):
        base = call * launch.threads
        used = min(launch.threads, len(groups) - base)
        for first in range(0, used, philox.CHUNK):
            count = min(philox.CHUNK, used - first)
            mine = groups[base + first : base + first + count]
            for block in range(blocks):
                words = philox.words_of(
                    seed, place + call * blocks + block, first, count, min(at_once, 4)
                )
                for lane in range(min(at_once, 4)):
                    below(words[lane], limit, mine[:, 4 * block + lane])


# `multinomial` with replacement: a uniform number for each sample, looked up in the running sum.
#
# From ATen/native/cuda/MultinomialKernel.cu. (One sample, and samples without replacement, are
# drawn by exponential numbers: ATen/native/Distributions.cpp.) A sample's thread depends on its
# place among the samples and on its distribution, not on the GPU.

_BLOCK = 128  # threads
_MOST_ROWS = 65535  # of blocks in a grid


def with_replacement(weights: torch.Tensor, samples: int, source: Source) -> torch.Tensor:
    """Samples of every row of `weights` (CPU, float or double), as int64 of (rows, samples)."""
    rows = len(weights)
    chances = weights / weights.sum(1, keepdim=True)
    sums = chances.cumsum(1).numpy()
    width = -(-samples // _BLOCK) * _BLOCK
    high = min(rows, _MOST_ROWS)
    calls = -(-rows // high)
    seed, place = source.stream.take(calls * STEP)
    result = np.empty((rows, samples), np.int64)
    possible = chances.numpy() > 0
    at_once = max(1, philox.CHUNK // max(width, sums.shape[1]))
    for call in range(calls):
        first, end = call * high, min((call + 1) * high, rows)
        for start in range(first, end, at_once):
            stop = min(start + at_once, end)
            drawn = np.empty((stop - start) * width, sums.dtype)  # the threads of these rows
            for at in range(0, len(drawn), philox.CHUNK):
                count = min(philox.CHUNK, len(drawn) - at)
                thread = (start - first) * width + at
                words = philox.words_of(seed, place + call, thread, count, 1)
                drawn[at : at + count] = unit_float(words.x)
            of_rows = drawn.reshape(-1, width)[:, :samples]
            result[start:stop] = _buckets(sums[start:stop], possible[start:stop], of_rows)
    return torch.from_numpy(result)


def _buckets(sums: Array, possible: Array, drawn: Array) -> Array:
    """Per row, the first possible category whose running sum reaches each number."""
    categories = sums.shape[1]
    # Down to the last possible category before, or to the first one of all.
    last = np.maximum.accumulate(np.where(possible, np.arange(categories), 0), axis=1)
    found = [np.searchsorted(*row, side="left") for row in zip(sums, drawn, strict=True)]
    return np.take_along_axis(last, np.minimum(found, categories - 1), axis=1)


# `randperm`: the numbers from 0 on, sorted by random keys.
#
# From ATen/native/cuda/Randperm.cu and Randperm.cuh. The keys have as many bits as make equal ones
# unlikely; where some are equal all the same, the first thread of each group of them shuffles it.


def bits_of_keys(numel: int) -> int:
    """How many bits of the keys of `numel` > 0 numbers are compared."""
    count = float(numel)
    chance = math.log(0.9) * 12  # at most one permutation in ten has equal keys
    return min(64, math.ceil(math.log2(count - (6 * count * count + 1) / chance)))


def permutation(numel: int, source: Source) -> Array:
    """The numbers 0 to `numel` - 1 as 64-bit integers, shuffled as on the GPU of `source`."""
    if not numel:
        return np.empty(0, np.int64)
    bits = bits_of_keys(numel)
    dtype = torch.int32 if bits <= 32 else torch.int64
    kind = from_to(dtype, torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    launch = launch_of(numel, kind.unroll, source.resident)
    keys: Array = np.empty(numel, np.int64)
    draw(keys, *source.stream.take(launch.increment), launch, kind)
    width = 32 if bits <= 32 else 64
    compared = keys.view(np.uint64) & np.uint64(2**bits - 1)
    if bits == width:  # the sort takes the highest bit of a whole key for its sign
        compared ^= np.uint64(2 ** (width - 1))
    order = np.argsort(compared, kind="stable")
    seed, place = source.stream.take(numel)
    _shuffle_equals(order, compared[order], seed, place)
    return order


def _shuffle_equals(order: Array, keys: Array, seed: int, place: int) -> None:
    """Shuffle the numbers under each group of equal keys, from the last one on."""
    equal = keys[1:] == keys[:-1]
    heads = np.flatnonzero(equal & ~np.concatenate(([False], equal[:-1])))
    for head in heads.tolist():
        size = 2
        while head + size < len(keys) and keys[head + size] == keys[head]:
            size += 1
        drawn: list[int] = []
        for last in range(size - 1, 0, -1):
            number = size - 1 - last
            if not number % 4:
                block = philox.words_of(seed, place + number // 4, head, 1)
                drawn.extend(int(word[0]) for word in block)
            other = drawn[number] % (last + 1)
            one, two = head + last, head + other
            order[one], order[two] = order[two], order[one]


Keys = torch._C.DispatchKeySet

_aten = torch.ops.aten
_Stock: Any = torch._C.Generator
SCRATCH: torch.Generator = _Stock()
"""A generator for calls whose numbers are thrown away."""

REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_UNITS = 0.0, 1.0, 1.0
_PAST_FLOATS = 2**62  # no float counts so far in ones
_clone = _aten.clone.default._handle.redispatch_boxed


def check(keys: Keys, op: torch._ops.OpOverload, like: Tensor, *args: Any) -> None:
    """Raise what the CPU's `op` raises for these arguments."""
    with torch._C.DisableTorchFunction():
        one = torch.zeros(1, dtype=like.dtype, device="cpu")
    op._handle.redispatch_boxed(keys, one, *args, generator=SCRATCH)


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _is_double(tensor: Tensor) -> bool:
    return tensor.dtype is torch.float64


def uniform_(
    keys: Keys, tensor: Tensor, low: float = 0, high: float = 1, *, generator: Source
) -> Tensor:
    """`uniform_(from, to)`: numbers in [low, high), bounds rounded to the tensor's dtype."""
    if (
        low == 0
        and high == 1
        and tensor.dtype is torch.float32
        and tensor.is_contiguous()
        and (drawn := _drawn_ahead(tensor.numel(), generator)) is not None
    ):
        tensor.numpy().reshape(-1)[:] = drawn
        return tensor
    real = _as_real(tensor)
    bounds = _UNITS
    if low != 0 or high != 1 or real.dtype not in REAL:
        check(keys, _aten.uniform_.default, real, low, high)
        first, last = torch.tensor([low, high], dtype=torch.float64, device="cpu").to(real.dtype)
        bounds = float(first), float(last), float(last - first)
    exact = real.dtype in (torch.float32, torch.float64)
    fill(real, generator, distributions.Uniform(_is_double(real), *bounds, turns=exact))
    if not exact:  # known only now that they are rounded
        real.masked_fill_(real == bounds[1], bounds[0])
    return tensor


def new_uniform(keys: Keys, size: Sequence[int], generator: Source) -> Tensor | None:
    """What `uniform_()` puts into a new tensor of floats, if its numbers were computed ahead."""
    if len(size) > 1 and min(size) < 0:
        return None  # their product may be positive
    drawn = _drawn_ahead(math.prod(size), generator)
    if drawn is None:
        return None
    ahead = torch.from_numpy(drawn if len(size) == 1 else drawn.reshape(size))
    # By PyTorch, whose memory is aligned: how MKL adds up depends on where a matrix begins.
    return _clone(keys, ahead)  # type: ignore[no-any-return]


def _drawn_ahead(numel: int, source: Source) -> Floats | None:
    """The next few floats in [0, 1), not to be written to; None where there are too many."""
    if not 0 < numel <= MOST_THREADS or numel > source.resident:
        return None
    stream = source.stream
    seed, place = stream.take(STEP)
    return stream.ahead.drawn(1, seed, place, numel)[:numel]


def normal_(
    keys: Keys, tensor: Tensor, mean: float = 0, std: float = 1, *, generator: Source
) -> Tensor:
    """`normal_(mean, std)`; the parts of a complex number have half of the variance each."""
    real = _as_real(tensor)
    if not std >= 0 or real.dtype not in REAL:
        check(keys, _aten.normal_.default, tensor, mean, std)
    if real is not tensor:
        std = std / math.sqrt(2)
    fill(real, generator, distributions.Normal(_is_double(real), mean, std))
    return tensor


def _filled_by(
    op: torch._ops.OpOverload, kind: Callable[..., Kind], of: Callable[[Tensor], Any] = _is_double
) -> Callable[..., Tensor]:
    """The operator `op`, which fills a tensor by `kind(of(tensor), ...)` of its arguments."""

    def run(keys: Keys, tensor: Tensor, *args: Any, generator: Source) -> Tensor:
        check(keys, op, tensor, *args)
        fill(tensor, generator, kind(of(tensor), *args))
        return tensor

    return run


def random_from(
    keys: Keys, tensor: Tensor, low: int, high: int | None, *, generator: Source
) -> Tensor:
    """`random_(low, high)`."""
    refuse_past_floats(tensor, low, high)
    check(keys, getattr(_aten.random_, "from"), tensor, low, high)
    fill(tensor, generator, distributions.from_to(tensor.dtype, low, high))
    return tensor


def refuse_past_floats(tensor: Tensor, low: int, high: int | None) -> None:
    """PyTorch's own check of these overflows where they are rounded up, or never ends."""
    if high is None and low >= _PAST_FLOATS and tensor.dtype in distributions.DIGITS:
        raise RuntimeError(
            "random_ expects 'from' casted to dtype to be less than or equal to 'to_inc' casted to "
            f"dtype, but got from={low} > to_inc={2 ** distributions.DIGITS[tensor.dtype]}"
        )


def random_from_of_host(keys: Keys, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`random_(low, high)` by the CPU's generator and kernel."""
    refuse_past_floats(tensor, *args)
    op = getattr(_aten.random_, "from")
    return cast(Tensor, op._handle.redispatch_boxed(keys, tensor, *args, **kwargs))


def random_to(keys: Keys, tensor: Tensor, high: int, *, generator: Source) -> Tensor:
    """`random_(high)`: from 0 on."""
    return random_from(keys, tensor, 0, high, generator=generator)


def bernoulli_tensor(keys: Keys, tensor: Tensor, p: Tensor, *, generator: Source) -> Tensor:
    """`bernoulli_(p)` with a tensor of probabilities, which are computed in float or double."""
    if not tensor.numel():
        return tensor
    refuse_overlap(tensor)
    check(keys, _aten.bernoulli_.Tensor, tensor, torch.ones(1, device="cpu"))
    dtype = torch.float64 if _is_double(tensor) else torch.float32
    chances = p.to(dtype).expand(tensor.shape)
    if not p.is_floating_point() or not bool(((chances >= 0) & (chances <= 1)).all()):
        raising = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        _aten.bernoulli_.Tensor._handle.redispatch_boxed(keys, raising, p, generator=SCRATCH)
    order = distributions.order_of_elements(tensor.shape, tensor.stride(), chances.stride())
    chances = chances.permute(order).contiguous()
    tensor.permute(order).copy_(distributions.toss_each(chances, generator))
    return tensor


# Draws that make a tensor or fill an `out=`, of draws in place as PyTorch makes them for CUDA:
# ATen/native/DistributionTemplates.h, Distributions.cpp and cuda/RreluWithNoise.cu.

_ODD = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03  # spread seed and place over 64 bits


# With the words of an operator where two sizes do not fit each other.
_broadcast: Callable[..., Sequence[int]] = torch._C._infer_size
_MOST_CATEGORIES = 2**24


def _resized(out: Tensor | None, shape: Sequence[int], like: Tensor) -> Tensor:
    if out is None:
        return torch.empty(shape, dtype=like.dtype, device="cpu")
    return out if out.shape == shape else out.resize_(shape)


def normal(
    keys: Keys, mean: Any, std: Any = 1.0, *, generator: Source, out: Tensor | None = None
) -> Tensor:
    """`torch.normal` where mean or std is a tensor."""
    if isinstance(std, Tensor):
        if std.is_complex():
            raise RuntimeError("normal expects standard deviation to be non-complex")
        if std.numel() and not bool(std.min() >= 0):
            raise RuntimeError("normal expects all elements of std >= 0.0")
        shape: Sequence[int] = std.shape
        if isinstance(mean, Tensor):
            shape = _broadcast(mean.shape, std.shape)
            result = _resized(out, shape, mean)
        else:
            dtype = (std if out is None else out).dtype
            mean = torch.full((), mean, dtype=dtype, device="cpu")  # rounded, or refused
            result = _resized(out, shape, std)
        normal_(keys, result, generator=generator)
        return result.mul_(std).add_(mean)
    if not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    shape = mean.shape if out is None else _broadcast(mean.shape, out.shape)
    result = _resized(out, shape, mean)
    return normal_(keys, result, 0, std, generator=generator).add_(mean)


def bernoulli_out(keys: Keys, p: Tensor, *, generator: Source, out: Tensor) -> Tensor:
    """`torch.bernoulli(p, out=...)`."""
    result = _resized(out, p.shape, p)
    return bernoulli_tensor(keys, result, p, generator=generator)


def multinomial(
    keys: Keys,
    weights: Tensor,
    samples: int,
    replacement: bool = False,
    *,
    generator: Source,
    out: Tensor | None = None,
) -> Tensor:
    """`torch.multinomial`: by exponential numbers, but for several samples with replacement."""
    categories = weights.shape[-1] if weights.dim() else 0
    if (
        not weights.numel()
        or not weights.is_floating_point()
        or not 1 <= weights.dim() <= 2
        or categories > _MOST_CATEGORIES
        or samples <= 0
        or (samples > categories and not replacement)
        or (out is not None and out.dtype is not torch.int64)
        or not _is_distribution(weights)
    ):  # raises, or there is nothing to draw
        packet, outs = _aten.multinomial, {} if out is None else {"out": out}
        run = (packet.out if outs else packet.default)._handle.redispatch_boxed
        return run(keys, weights, samples, replacement, generator=SCRATCH, **outs)  # type: ignore[no-any-return]
    if replacement and samples > 1:
        rows = weights.reshape(-1, categories)
        wide = rows if rows.dtype is torch.float64 else rows.float()
        drawn = with_replacement(wide, samples, generator).view(*weights.shape[:-1], samples)
    else:
        scores = torch.empty_like(weights)
        fill(scores, generator, distributions.Exponential(_is_double(scores)))
        torch.div(weights, scores, out=scores)
        # One as argmax: of equal scores it is sure to be the first.
        drawn = scores.argmax(-1, keepdim=True) if samples == 1 else scores.topk(samples).indices
    return drawn if out is None else _resized(out, drawn.shape, drawn).copy_(drawn)


def _is_distribution(weights: Tensor) -> bool:
    valid = (weights >= 0) & weights.isfinite()
    return bool(valid.all()) and bool((weights.sum(-1) > 0).all())


def randperm_out(keys: Keys, numel: int, *, generator: Source, out: Tensor) -> Tensor:
    """`torch.randperm`."""
    if numel < 0 or out.dtype not in (torch.int64, torch.int32):
        call = _aten.randperm.generator_out._handle.redispatch_boxed
        call(keys, numel, generator=SCRATCH, out=torch.empty(0, dtype=out.dtype, device="cpu"))
    result = _resized(out, torch.Size([numel]), out)
    return result.copy_(torch.from_numpy(permutation(numel, generator)))


def rrelu_with_noise(
    keys: Keys,
    tensor: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    *,
    generator: Source,
    out: Tensor | None = None,
) -> Tensor:
    """`rrelu`: negative numbers times a random slope, which is left in `noise`."""
    arguments = tensor, noise, lower, upper, training
    if not training or not tensor.numel() or tensor.dtype not in REAL:
        packet, outs = _aten.rrelu_with_noise, {} if out is None else {"out": out}
        run = (packet.out if outs else packet.default)._handle.redispatch_boxed
        return run(keys, *arguments, generator=SCRATCH, **outs)  # type: ignore[no-any-return]
    drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    fill(drawn, generator, distributions.Unit(_is_double(tensor)))
    slopes = drawn.double()
    multiply_add(slopes.numpy().reshape(-1), upper - lower, lower)
    slope = (slopes if _is_double(tensor) else slopes.float()).to(tensor.dtype)
    sloping = tensor <= 0
    result = torch.where(sloping, tensor * slope, tensor)
    noise.copy_(torch.where(sloping, slope, torch.ones_like(slope)))
    return result if out is None else _resized(out, result.shape, result).copy_(result)


def rrelu_with_noise_(keys: Keys, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`rrelu_`."""
    return tensor.copy_(rrelu_with_noise(keys, tensor, *args, **kwargs))


def by_host(op: torch._ops.OpOverload, increment: int) -> Callable[..., Any]:
    """An operator whose numbers are the CPU's, not CUDA's, while the stream moves as there."""

    def run(keys: Keys, *args: Any, generator: Source) -> Any:
        seed, place = generator.stream.take(increment)
        host = type(SCRATCH)().manual_seed((seed * _ODD[0] + place * _ODD[1]) % 2**64)
        return op._handle.redispatch_boxed(keys, *args, generator=host)

    return run


SAMPLERS: dict[str, Callable[..., Any]] = {
    "_sample_dirichlet": by_host(_aten._sample_dirichlet.default, 10),
    "_standard_gamma": by_host(_aten._standard_gamma.default, 10),
    "bernoulli.out": bernoulli_out,
    "bernoulli_.Tensor": bernoulli_tensor,
    "bernoulli_.float": _filled_by(_aten.bernoulli_.float, distributions.toss),
    "binomial": by_host(_aten.binomial.default, 42),
    "cauchy_": _filled_by(_aten.cauchy_.default, distributions.Cauchy),
    "exponential_": _filled_by(_aten.exponential_.default, distributions.Exponential),
    "geometric_": _filled_by(_aten.geometric_.default, distributions.Geometric),
    "log_normal_": _filled_by(_aten.log_normal_.default, distributions.LogNormal),
    "multinomial": multinomial,
    "multinomial.out": multinomial,
    "normal.Tensor_Tensor": normal,
    "normal.Tensor_Tensor_out": normal,
    "normal.Tensor_float": normal,
    "normal.Tensor_float_out": normal,
    "normal.float_Tensor": normal,
    "normal.float_Tensor_out": normal,
    "normal_": normal_,
    "poisson": by_host(_aten.poisson.default, 20),
    "random_": _filled_by(_aten.random_.default, distributions.any_of, lambda tensor: tensor.dtype),
    "random_.from": random_from,
    "random_.to": random_to,
    "randperm.generator_out": randperm_out,
    "rrelu_with_noise": rrelu_with_noise,
    "rrelu_with_noise.out": rrelu_with_noise,
    "rrelu_with_noise_": rrelu_with_noise_,
    "uniform_": uniform_,
}
"""By name of the operator: the host code that `launch` runs for it."""

NEW: dict[str, Callable[..., Tensor | None]] = {"uniform_": new_uniform}
"""By the same name: a new tensor of floats with its numbers, where that is quicker, or None."""
