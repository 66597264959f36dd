"""What checks of several families ask: shapes, numbers of dimensions, values used as positions.

A check takes the arguments of a call by their names, and raises RuntimeError, or IndexError where
PyTorch raises it for the same mistake elsewhere. Autograd gives a backward operator a gradient of
its forward's shape; a program that calls `torch.ops.aten` itself may give it any, and a CPU kernel
that trusts it would read past memory. Most host kernels look at indices before they use them as
positions in memory; the checks that read values are for those that do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from simgpu._ops.table import Check

Tensor = torch.Tensor
_C = TypeVar("_C", bound=Callable[..., None])
_value_checks: set[object] = set()


def reads_values(check: _C) -> _C:
    """Mark a check that looks at values of tensors; all others look at shapes and dtypes only."""
    _value_checks.add(check)
    return check


def looks_at_values(check: Check) -> bool:
    """Whether a check, or what a `functools.partial` calls, is marked."""
    return getattr(check, "func", check) in _value_checks


def expect(operator: str, arguments: dict[str, Any], **shapes: tuple[int, ...]) -> None:
    """The arguments named have these shapes."""
    for name, shape in shapes.items():
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.shape != shape:
            raise RuntimeError(
                f"{operator}: expected {name} of shape {shape}, got {tuple(given.shape)}"
            )


def refuse(operator: str, arguments: dict[str, Any], *names: str) -> None:
    """Say that the arguments named do not go together."""
    given = ", ".join(f"{name} {tuple(arguments[name].shape)}" for name in names)
    raise RuntimeError(f"{operator}: these shapes do not go together: {given}")


def outside(values: Tensor, low: int, high: int) -> int | None:
    """The first number of a host tensor that is not from `low` to `high`, or None."""
    if not values.numel() or values.is_floating_point():
        return None  # of a dtype that no index has, the kernel says so
    smallest, largest = (bound.item() for bound in values.aminmax())
    if low <= smallest and largest <= high:
        return None
    return int(values[(values < low) | (values > high)][0])


def few_dims(
    arguments: dict[str, Any],
    past: str = "",
    sorts: bool = False,
    only: Callable[[dict[str, Any]], bool] | None = None,
) -> None:
    """As many dimensions as CUDA's kernels have room for (ATen/cuda/detail/TensorInfo.cuh).

    They have no room for 25, unless there is nothing to compute; operators that ask for more than
    25 themselves say so in `past`. What sorts (`sorts`) does nothing along one element. `only` says
    which calls have such a kernel.
    """
    x: Tensor = arguments["self" if "self" in arguments else "input"]
    if x.dim() < 25 or (only is not None and not only(arguments)):
        return
    if sorts and (not x.numel() or x.shape[arguments.get("dim", -1)] == 1):
        return
    if x.dim() == 25 and x.numel():
        raise RuntimeError("CUDA Tensors cannot have more than 25 dimensions")
    if x.dim() > 25 and past:
        raise RuntimeError(past)


def at_most_25_dims(arguments: dict[str, Any], words: str) -> None:
    """25 dimensions at most, in the operator's own words, unless no element is asked for."""
    if arguments["self"].dim() > 25 and ("index" not in arguments or arguments["index"].numel()):
        raise RuntimeError(words)
