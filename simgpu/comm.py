"""`simgpu.comm.reduction`: the order in which simulated NCCL reductions add.

Peer copies add in ascending order. NCCL promises no order; its ring and tree algorithms, and
whatever a later release does, may round differently. Code that is right on hardware holds for all
of them:

    with simgpu.comm.reduction("ring"):
        loss.backward()

While a model other than "ordered" is on, `torch.cuda.nccl.is_available` says yes for tensors on
distinct simulated devices, and `torch.cuda.nccl.reduce` adds as the model says. Tensors on distinct
devices that NCCL refuses (of several dtypes, of int16) are refused in any order.

May import: `torch`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal as _Literal
from typing import get_args

import torch

Reduction = _Literal["ordered", "ring", "tree", "random"]

__all__ = ["Reduction", "reduce_add", "reduction"]

FLOAT8 = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)
# What NCCL knows. Complex numbers travel as two, but not in torch.cuda.comm.reduce_add.
NCCL_DTYPES = {
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    *FLOAT8,
}

Into = Callable[[torch.Tensor, torch.Tensor], None]


class _Model:
    """The model in force, for all threads: hardware is the same for all of them too.

    Where threads are ranks, it is exchanged when they take turns (`simgpu._ranks.rank_state`).
    """

    name: Reduction = "ordered"
    numbers = random.Random(0)


@contextmanager
def reduction(name: Reduction, seed: int = 0) -> Iterator[None]:
    """Make reductions add in the given order within the block, in all threads.

    Ranks of `simgpu.ranks` have an order each: that of the one that starts them, until they say.

    Args:
        name: "ordered" (from the destination's tensor on, then the others in ascending order),
            "ring" (each segment of the data begins at another device), "tree" (pairs of pairs), or
            "random" (another order at every call, from `seed`).

    Raises:
        ValueError: an unknown name.
    """
    if name not in get_args(Reduction):
        raise ValueError(f"reduction must be one of {get_args(Reduction)}, got {name!r}")
    outer = current()
    set_current((name, random.Random(seed)))
    try:
        yield
    finally:
        set_current(outer)


def current() -> tuple[Reduction, random.Random]:
    """The name of the model in force, and what its random orders are drawn by."""
    return _Model.name, _Model.numbers


def set_current(model: tuple[Reduction, random.Random]) -> None:
    """Make reductions add as they did when `current` returned `model`."""
    _Model.name, _Model.numbers = model


def is_ordered() -> bool:
    """Whether reductions are by peer copies."""
    return _Model.name == "ordered"


def reduce_add(tensors: Sequence[torch.Tensor], root: int = 0) -> torch.Tensor:
    """The sum of equally shaped tensors of several devices, on the device of `tensors[root]`.

    Added in the order of the model in force, in the tensors' dtype. The tensors are unchanged.

    Raises:
        ValueError: no tensors, or different shapes or dtypes.
    """
    if not tensors:
        raise ValueError("reduce_add needs at least one tensor, got none")
    kinds = {(tuple(tensor.shape), tensor.dtype) for tensor in tensors}
    if len(kinds) > 1:
        raise ValueError(
            f"reduce_add needs tensors of one shape and dtype, got {sorted(map(str, kinds))}"
        )
    here = tensors[root].device
    near = [tensor if tensor.device == here else tensor.to(here) for tensor in tensors]
    if near[0].dtype in FLOAT8:
        wide = [tensor.float() for tensor in near]
        return _FOLDS[_Model.name](wide, root, _add).to(near[0].dtype)
    return _FOLDS[_Model.name](near, root, _add)


def fold(tensors: Sequence[torch.Tensor], into: Into, segment: int | None = None) -> torch.Tensor:
    """One new tensor of the tensors of all ranks, combined in the order of the model in force.

    `into(total, tensor)` puts a tensor into the total. With `segment`, the tensors are that one of
    as many segments of the data as there are ranks.
    """
    if segment is not None and _Model.name == "ring":
        return _in_turn(_from(tensors, segment), into)
    return _FOLDS[_Model.name](list(tensors), 0, into)


def _add(total: torch.Tensor, tensor: torch.Tensor) -> None:
    total += tensor


def _ordered(tensors: list[torch.Tensor], root: int, into: Into) -> torch.Tensor:
    others = [tensor for index, tensor in enumerate(tensors) if index != root]
    return _in_turn([tensors[root], *others], into)


def _in_turn(tensors: list[torch.Tensor], into: Into) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        into(total, tensor)
    return total


def _from(tensors: Sequence[torch.Tensor], start: int) -> list[torch.Tensor]:
    return [*tensors[start:], *tensors[:start]]


def _ring(tensors: list[torch.Tensor], root: int, into: Into) -> torch.Tensor:
    count = len(tensors)
    pieces = [tensor.reshape(-1).tensor_split(count) for tensor in tensors]
    segments = [
        _in_turn(_from([piece[segment] for piece in pieces], segment), into)
        for segment in range(count)
    ]
    return torch.cat(segments).reshape(tensors[0].shape)


def _tree(tensors: list[torch.Tensor], root: int, into: Into) -> torch.Tensor:
    level = list(tensors)
    while len(level) > 1:
        pairs = [_in_turn(level[i : i + 2], into) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0] if len(tensors) > 1 else level[0].clone()


def _random(tensors: list[torch.Tensor], root: int, into: Into) -> torch.Tensor:
    return _in_turn(_Model.numbers.sample(tensors, len(tensors)), into)


_FOLDS: dict[Reduction, Callable[[list[torch.Tensor], int, Into], torch.Tensor]] = {
    "ordered": _ordered,
    "random": _random,
    "ring": _ring,
    "tree": _tree,
}
