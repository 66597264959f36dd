"""Reductions over ranks: sum, mean, product and others of one tensor per rank, on the host.

Added in the order of the ranks, or as `simgpu.comm.reduction` says. A mean is what NCCL computes:
of floating-point numbers each rank's are multiplied by 1/n before they are added, of integers the
sum is divided, towards zero. Sums of truth values are their "or".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from simgpu import comm
from simgpu._distributed import factors
from simgpu.comm import FLOAT8

Tensor = torch.Tensor

# Without what is replaced for code that may pass backward.
_call_method = inspect.unwrap(torch._C.ScriptMethod.__call__)

BITWISE = ("BAND", "BOR", "BXOR")
_COMBINE: dict[str, Callable[..., Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PREMUL_SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


@dataclass(frozen=True)
class Reduction:
    """A `torch.distributed.ReduceOp`: its name, and the factor of PREMUL_SUM."""

    name: str
    factor: Any = None

    @staticmethod
    def of(op: Any) -> Reduction:
        """What a ReduceOp means, boxed by the dispatcher or not."""
        kind: Any = op.op
        kind = _call_method(kind) if isinstance(op, torch._C.ScriptObject) else kind
        reduction = _without_factor(int(kind))
        if reduction.name == "PREMUL_SUM":
            return Reduction(reduction.name, factors.current())
        return reduction

    def prepare(self, mine: Tensor, count: int) -> Tensor:
        """This rank's part as it is to be combined: a new tensor where it differs."""
        dtype = mine.dtype
        if self.name == "AVG" and not _is_integral(dtype):
            factor = 1.0 / count
        elif self.name == "PREMUL_SUM":
            factor = self.factor.item() if isinstance(self.factor, Tensor) else self.factor
        else:
            return mine
        if dtype in FLOAT8:
            return (mine.float() * factor).to(dtype)
        return mine * torch.tensor(
            factor, dtype=dtype.to_real() if dtype.is_complex else dtype, device="cpu"
        )

    def combine(self, parts: list[Tensor], segment: int | None = None) -> Tensor:
        """One new tensor of the prepared parts of all ranks, in the order of the model in force.

        `segment` says which of as many segments as there are ranks these are, None that they are
        all of them.
        """
        dtype = parts[0].dtype
        if dtype in FLOAT8:
            return self.combine([part.float() for part in parts], segment).to(dtype)
        function = _COMBINE[self.name]

        def into(total: Tensor, part: Tensor) -> None:
            function(total, part, out=total)

        total = comm.fold(parts, into, segment)
        if self.name == "AVG" and _is_integral(dtype):
            total = torch.div(total, len(parts), rounding_mode="trunc")
        return total


@functools.cache
def _without_factor(kind: int) -> Reduction:
    return Reduction(distributed.ReduceOp.RedOpType(kind).name)


def _is_integral(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex
