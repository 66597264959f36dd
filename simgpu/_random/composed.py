"""Draws that make a tensor or fill an `out=`: `torch.normal`, `multinomial`, `randperm`, `rrelu`.

They are made of draws in place as PyTorch makes them for CUDA: ATen/native/DistributionTemplates.h,
ATen/native/Distributions.cpp, ATen/native/cuda/RreluWithNoise.cu. `samplers` describes what the
functions are handed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from simgpu._random import distributions, samplers
from simgpu._random.fill import Source, fill
from simgpu._random.philox import multiply_add
from simgpu._random.samplers import SCRATCH, Keys, Tensor, permutation, with_replacement

_aten = torch.ops.aten
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
        samplers.normal_(keys, result, generator=generator)
        return result.mul_(std).add_(mean)
    if not std >= 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    shape = mean.shape if out is None else _broadcast(mean.shape, out.shape)
    result = _resized(out, shape, mean)
    return samplers.normal_(keys, result, 0, std, generator=generator).add_(mean)


def bernoulli_out(keys: Keys, p: Tensor, *, generator: Source, out: Tensor) -> Tensor:
    """`torch.bernoulli(p, out=...)`."""
    result = _resized(out, p.shape, p)
    return samplers.bernoulli_tensor(keys, result, p, generator=generator)


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
    run = _aten.multinomial.default._handle.redispatch_boxed
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
        if out is not None:
            call = _aten.multinomial.out._handle.redispatch_boxed
            result: Tensor = call(keys, weights, samples, replacement, generator=SCRATCH, out=out)
            return result
        return run(keys, weights, samples, replacement, generator=SCRATCH)  # type: ignore[no-any-return]
    if replacement and samples > 1:
        rows = weights.reshape(-1, categories)
        wide = rows if rows.dtype is torch.float64 else rows.float()
        drawn = with_replacement(wide, samples, generator).view(*weights.shape[:-1], samples)
    else:
        scores = torch.empty_like(weights)
        samplers.exponential_(keys, scores, generator=generator)
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
    if not training or not tensor.numel() or tensor.dtype not in samplers.REAL:
        if out is None:
            run = _aten.rrelu_with_noise.default._handle.redispatch_boxed
            return run(keys, *arguments, generator=SCRATCH)  # type: ignore[no-any-return]
        run = _aten.rrelu_with_noise.out._handle.redispatch_boxed
        return run(keys, *arguments, generator=SCRATCH, out=out)  # type: ignore[no-any-return]
    drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    fill(drawn, generator, distributions.Unit(tensor.dtype is torch.float64))
    slopes = drawn.double()
    multiply_add(slopes.numpy().reshape(-1), upper - lower, lower)
    slope = slopes.to(torch.float64 if tensor.dtype is torch.float64 else torch.float32)
    slope = slope.to(tensor.dtype)
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
    "bernoulli_.Tensor": samplers.bernoulli_tensor,
    "bernoulli_.float": samplers.bernoulli_float,
    "binomial": by_host(_aten.binomial.default, 42),
    "cauchy_": samplers.cauchy_,
    "exponential_": samplers.exponential_,
    "geometric_": samplers.geometric_,
    "log_normal_": samplers.log_normal_,
    "multinomial": multinomial,
    "multinomial.out": multinomial,
    "normal.Tensor_Tensor": normal,
    "normal.Tensor_Tensor_out": normal,
    "normal.Tensor_float": normal,
    "normal.Tensor_float_out": normal,
    "normal.float_Tensor": normal,
    "normal.float_Tensor_out": normal,
    "normal_": samplers.normal_,
    "poisson": by_host(_aten.poisson.default, 20),
    "random_": samplers.random_,
    "random_.from": samplers.random_from,
    "random_.to": samplers.random_to,
    "randperm.generator_out": randperm_out,
    "rrelu_with_noise": rrelu_with_noise,
    "rrelu_with_noise.out": rrelu_with_noise,
    "rrelu_with_noise_": rrelu_with_noise_,
    "uniform_": samplers.uniform_,
}
"""By name of the operator: the host code that `launch` runs for it."""

NEW: dict[str, Callable[..., Tensor | None]] = {"uniform_": samplers.new_uniform}
"""By the same name: a new tensor of floats with its numbers, where that is quicker, or None."""
