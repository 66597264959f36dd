"""Values for test tensors: the same on every machine, exact in their dtype or made to round."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"dtype={dtype!r} must be a torch.dtype or the name of one")
    return kind


def exact_values(
    shape: Sequence[int], dtype: str | torch.dtype, seed: int = 0, span: int = 251
) -> torch.Tensor:
    """Return a CPU tensor of integers, the same on every machine, that no dtype of `DTYPES` rounds.

    At most `span` of them (251 fits in a signed byte and in bfloat16), around zero if the dtype
    has a sign, and no two neighbouring rows alike. Their sums are exact in any order as long as
    they stay below the dtype's range of integers (256 in bfloat16, 2048 in float16, 2**24 in
    float32).
    """
    kind = _dtype(dtype)
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.int64, device="cpu") + 1 + seed
    mixed = (index * index * 31 + index * 17 + seed) % span
    if kind.is_complex:
        parts = torch.stack([mixed - span // 2, (mixed * 7 + 3) % span - span // 2], dim=-1)
        whole = torch.view_as_complex(parts.to(torch.float64)).to(kind)
    elif kind == torch.bool:
        whole = mixed > span // 2
    elif kind.is_signed:
        whole = (mixed - span // 2).to(kind)
    else:
        whole = mixed.to(kind)
    return whole.reshape(tuple(shape))


def ordinary_values(
    shape: Sequence[int], dtype: str | torch.dtype, seed: int = 0, magnitudes: int = 6
) -> torch.Tensor:
    """Return a CPU tensor of normal numbers times 2**-magnitudes to 2**magnitudes.

    Sums of them have to round, so they show the order of a summation; integers and booleans are
    rounded towards zero from the same numbers (times 8). PyTorch's CPU generator makes them, from
    `seed` alone.
    """
    kind = _dtype(dtype)
    if kind.is_complex:
        parts = ordinary_values((*shape, 2), torch.float64, seed, magnitudes)
        return torch.view_as_complex(parts).to(kind)
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(tuple(shape), generator=generator, dtype=torch.float64, device="cpu")
    exponents = torch.randint(
        -magnitudes, magnitudes + 1, tuple(shape), generator=generator, device="cpu"
    )
    numbers = numbers * 2.0**exponents
    if kind == torch.bool:
        return numbers > 0
    if not kind.is_floating_point:
        limits = torch.iinfo(kind)
        return (numbers * 8).clamp(max(limits.min, -(2**31)), min(limits.max, 2**31)).to(kind)
    return numbers.to(kind)
