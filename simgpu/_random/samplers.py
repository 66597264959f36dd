"""Draws in place: the host code of `uniform_`, `normal_`, `random_`, `bernoulli_` and their kin.

Each function takes the operator's arguments, with a CPU tensor and with a `Source` as the
generator; the dispatch keys come first, as for every host kernel. What an operator refuses, it
refuses in PyTorch's words: the CPU's kernel is called on one element, and has the same checks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch

from simgpu._random import bernoulli, floats, integers
from simgpu._random.ahead import MOST_THREADS
from simgpu._random.arithmetic import Floats
from simgpu._random.fill import Source, fill, refuse_overlap
from simgpu._random.geometry import STEP

Tensor = torch.Tensor
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
    fill(real, generator, floats.Uniform(_is_double(real), *bounds, turns=exact))
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
    return stream.ahead.uniform(seed, place, numel)[:numel]


def normal_(
    keys: Keys, tensor: Tensor, mean: float = 0, std: float = 1, *, generator: Source
) -> Tensor:
    """`normal_(mean, std)`; the parts of a complex number have half of the variance each."""
    real = _as_real(tensor)
    if not std >= 0 or real.dtype not in REAL:
        check(keys, _aten.normal_.default, tensor, mean, std)
    if real is not tensor:
        std = std / math.sqrt(2)
    fill(real, generator, floats.Normal(_is_double(real), mean, std))
    return tensor


def log_normal_(
    keys: Keys, tensor: Tensor, mean: float = 1, std: float = 2, *, generator: Source
) -> Tensor:
    """`log_normal_(mean, std)`: exponentials of normal numbers."""
    check(keys, _aten.log_normal_.default, tensor, mean, std)
    fill(tensor, generator, floats.LogNormal(_is_double(tensor), mean, std))
    return tensor


def cauchy_(
    keys: Keys, tensor: Tensor, median: float = 0, sigma: float = 1, *, generator: Source
) -> Tensor:
    """`cauchy_(median, sigma)`."""
    check(keys, _aten.cauchy_.default, tensor, median, sigma)
    fill(tensor, generator, floats.Cauchy(_is_double(tensor), median, sigma))
    return tensor


def exponential_(keys: Keys, tensor: Tensor, lambd: float = 1, *, generator: Source) -> Tensor:
    """`exponential_(lambd)`."""
    check(keys, _aten.exponential_.default, tensor, lambd)
    fill(tensor, generator, floats.Exponential(_is_double(tensor), lambd))
    return tensor


def geometric_(keys: Keys, tensor: Tensor, p: float, *, generator: Source) -> Tensor:
    """`geometric_(p)`: how many tosses it takes to succeed."""
    check(keys, _aten.geometric_.default, tensor, p)
    fill(tensor, generator, floats.Geometric(_is_double(tensor), p))
    return tensor


def random_(keys: Keys, tensor: Tensor, *, generator: Source) -> Tensor:
    """`random_()`."""
    check(keys, _aten.random_.default, tensor)
    fill(tensor, generator, integers.any_of(tensor.dtype))
    return tensor


def random_from(
    keys: Keys, tensor: Tensor, low: int, high: int | None, *, generator: Source
) -> Tensor:
    """`random_(low, high)`."""
    refuse_past_floats(tensor, low, high)
    check(keys, getattr(_aten.random_, "from"), tensor, low, high)
    fill(tensor, generator, integers.from_to(tensor.dtype, low, high))
    return tensor


def refuse_past_floats(tensor: Tensor, low: int, high: int | None) -> None:
    """PyTorch's own check of these overflows where they are rounded up, or never ends."""
    if high is None and low >= _PAST_FLOATS and tensor.dtype in integers.DIGITS:
        raise RuntimeError(
            "random_ expects 'from' casted to dtype to be less than or equal to 'to_inc' casted to "
            f"dtype, but got from={low} > to_inc={2 ** integers.DIGITS[tensor.dtype]}"
        )


def random_from_of_host(keys: Keys, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`random_(low, high)` by the CPU's generator and kernel."""
    refuse_past_floats(tensor, *args)
    op = getattr(_aten.random_, "from")
    return cast(Tensor, op._handle.redispatch_boxed(keys, tensor, *args, **kwargs))


def random_to(keys: Keys, tensor: Tensor, high: int, *, generator: Source) -> Tensor:
    """`random_(high)`: from 0 on."""
    return random_from(keys, tensor, 0, high, generator=generator)


def bernoulli_float(keys: Keys, tensor: Tensor, p: float = 0.5, *, generator: Source) -> Tensor:
    """`bernoulli_(p)` with a number."""
    check(keys, _aten.bernoulli_.float, tensor, p)
    if _is_double(tensor):
        fill(tensor, generator, bernoulli.TossOfDoubles(p))
    else:
        fill(tensor, generator, bernoulli.Toss(bernoulli.limit_of(p)))
    return tensor


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
    order = bernoulli.order_of_elements(tensor.shape, tensor.stride(), chances.stride())
    chances = chances.permute(order).contiguous()
    tensor.permute(order).copy_(bernoulli.toss_each(chances, generator))
    return tensor
