"""Sums that round: values whose sums have to, and the error bound that every order keeps.

The bound is that of summation in any order, |s - s*| <= gamma(n-1) * sum|g| with
gamma(k) = k*u / (1 - k*u), u the unit roundoff of the dtype and s* the sum in float64.
"""

import math

import torch
from torch import nn

from tests.support import strategies

ROUNDING = ("float32", "float16", "bfloat16")


def check_bound(total: torch.Tensor, parts: list[torch.Tensor]) -> None:
    """Check `total` against the float64 sum of `parts`, with the rounding bound of summation."""
    unit = torch.finfo(parts[0].dtype).eps / 2
    steps = len(parts) - 1
    gamma = steps * unit / (1 - steps * unit)
    columns = [part.detach().cpu().double().flatten().tolist() for part in parts]
    for got, *terms in zip(total.detach().cpu().double().flatten().tolist(), *columns, strict=True):
        error, bound = abs(got - math.fsum(terms)), gamma * math.fsum(map(abs, terms))
        strategies.tried(error=error / bound if bound else 0.0)
        assert error <= bound


def ordinary(seed: int, count: int, dtype: str) -> list[torch.Tensor]:
    """Return `count` small tensors of numbers of many magnitudes, whose sums have to round."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    exponents = torch.randint(-6, 7, (count, 4), generator=generator)
    return list((numbers * 2.0**exponents).to(getattr(torch, dtype)).unbind())


class Scale(nn.Module):
    """Its gradient on one row is that row, so that a replica's gradient is known exactly."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x
