"""What an operator's schema says of it, and what it leaves out.

PyTorch's schemas mark what an operator writes to, but for running statistics: those of batch norms
are written where a call trains, whether they are marked or not.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_ONLY_MEMORY = ("empty", "new_empty")
_STATISTICS = ("running_mean", "running_var")
# They write their statistics, and their schemas do not say so.
_UNMARKED = (
    *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
    *("batch_norm_update_stats", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"),
)


def _name(op: torch._ops.OpOverload) -> str:
    return op._schema.name.removeprefix("aten::")


def is_view(op: torch._ops.OpOverload) -> bool:
    """Whether all that an operator returns are its arguments, seen otherwise."""
    aliases = [result.alias_info for result in op._schema.returns]
    return bool(aliases) and all(alias and not alias.is_write for alias in aliases)


def makes_memory_only(op: torch._ops.OpOverload) -> bool:
    """Whether an operator makes tensors that nobody fills: `torch.empty` and its kin."""
    return _name(op).startswith(_ONLY_MEMORY)


@functools.cache
def launches_nothing(op: torch._ops.OpOverload) -> bool:
    """Whether CUDA runs no kernel for it: fresh memory that nobody fills, and views."""
    return makes_memory_only(op) or is_view(op)


@functools.cache
def written(op: torch._ops.OpOverload, training: bool = True) -> frozenset[int | str]:
    """The arguments that an operator writes to, by position and by name.

    Running statistics are among them where the call trains (see `trains`).
    """
    unmarked = _name(op) in _UNMARKED
    found: set[int | str] = set()
    for at, argument in enumerate(op._schema.arguments):
        is_statistic = argument.name in _STATISTICS
        marked = argument.alias_info is not None and argument.alias_info.is_write
        if (marked or (unmarked and is_statistic)) and (training or not is_statistic):
            found |= {at, argument.name}
    return frozenset(found)


def trains(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call changes running statistics if it has any: unless it says `training=False`."""
    at = _position_of_training(op)
    if at is None:
        return True
    return bool(args[at] if at < len(args) else kwargs.get("training", True))


@functools.cache
def _position_of_training(op: torch._ops.OpOverload) -> int | None:
    names = [argument.name for argument in op._schema.arguments]
    return names.index("training") if "training" in names else None
