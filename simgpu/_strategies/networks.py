"""Random small networks and tensors for `simgpu.strategies`, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


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
    rounded towards zero from the same numbers (times 8). PyTorch's CPU generator makes them, only
    from `seed`.
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


ACTIVATIONS = {"none": nn.Identity, "relu": nn.ReLU, "hardtanh": nn.Hardtanh}


class Network(nn.Module):
    """A small network of linear layers; its repr has all arguments and makes the same one again.

    Args:
        widths: the numbers of features from the input to the output, two or more.
        bias: whether the layers have one.
        activation: between two layers: "none", "relu" or "hardtanh".
        tied: if the first layer is square, every later layer of its shape shares its weight.
        shared: the activation between two layers, one module object, follows the last one too.
        frozen: the first layer asks for no gradient.
        buffered: the output is multiplied by a buffer and a second, non-persistent buffer is added.
        dtype: of the parameters.
        seed: of the parameters, which are -1, 0 and 1, so that inputs of small integers give
            outputs and gradients that are exact.

    Its input is (batch, widths[0]), its output (batch, widths[-1]).
    """

    def __init__(
        self,
        widths: Sequence[int],
        *,
        bias: bool = True,
        activation: str = "none",
        tied: bool = False,
        shared: bool = False,
        frozen: bool = False,
        buffered: bool = False,
        dtype: str = "float32",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if len(widths) < 2:
            raise ValueError(f"widths={widths!r} must name at least an input and an output width")
        self._arguments = (
            f"widths={tuple(widths)}, bias={bias}, activation={activation!r}, tied={tied}, "
            f"shared={shared}, frozen={frozen}, buffered={buffered}, dtype={dtype!r}, seed={seed}"
        )
        kind = getattr(torch, dtype)
        self.layers = nn.ModuleList(
            nn.Linear(narrow, wide, bias=bias, dtype=kind) for narrow, wide in pairwise(widths)
        )
        self.activation = ACTIVATIONS[activation]()
        if shared:
            self.again = self.activation
        first: nn.Linear = self.layers[0]  # type: ignore[assignment]  # a ModuleList of Linear
        with torch.no_grad():
            for index, parameter in enumerate(self.parameters()):
                parameter.copy_(exact_values(parameter.shape, kind, seed + index, span=3))
        if tied and widths[0] == widths[1]:
            for layer in self.layers[1:]:
                if layer.weight.shape == first.weight.shape:
                    layer.weight = first.weight
        if frozen:
            first.requires_grad_(False)
        self.scale: torch.Tensor | None
        self.shift: torch.Tensor | None
        scale = torch.full((), 2, dtype=kind, device="cpu") if buffered else None
        shift = exact_values((widths[-1],), kind, seed, span=3) if buffered else None
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the network's output for a batch of rows."""
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index < last or hasattr(self, "again"):
                x = self.activation(x)
        if self.scale is not None and self.shift is not None:
            x = x * self.scale + self.shift
        return x

    def __repr__(self) -> str:
        return f"Network({self._arguments})"
