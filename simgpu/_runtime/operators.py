"""What PyTorch says of an operator in its schema and its tags, and what these leave out.

A schema marks what an operator writes to, but for running statistics: those of batch norms are
written where a call trains, whether they are marked or not. Tags say where a GPU makes the host
wait, but not of indexing, which does so for masks, of which the host has to know how much is true,
and not of checks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

_ONLY_MEMORY = ("empty", "new_empty")
_STATISTICS = ("running_mean", "running_var")
# They write their statistics, and their schemas do not say so.
_UNMARKED = (
    *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
    *("batch_norm_update_stats", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"),
)
# `x[i]` and `x[i] = y`.
_INDEXING = (
    *("index", "_unsafe_index", "index_put", "index_put_"),
    *("_index_put_impl_", "_unsafe_index_put"),
)
_MASKS = (torch.bool, torch.uint8)
# Looks at values and says what is wrong with them (`torch.linalg.inv` of a singular matrix).
_CHECKS = ("_linalg_check_errors",)
_WAITS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


def _name(op: torch._ops.OpOverload) -> str:
    return op._schema.name.removeprefix("aten::")


def tensors_in(*values: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments or results, those in lists included, in their order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(*value)


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


def has_masks(op: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """Whether a call indexes by a mask: `x[x > 0]`, or assigns to that."""
    return _name(op) in _INDEXING and any(
        isinstance(index, torch.Tensor) and index.dtype in _MASKS for index in args[1]
    )


def waits_for_values(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a GPU makes the host wait for a kernel: for how many results it has, or for a value.

    A number is assigned to a mask without that (`x[x > 0] = 1`), as by `masked_fill_`. On a device
    it comes as a tensor without dimensions, as one does that CUDA would wait for.
    """
    if _name(op) in _INDEXING:
        is_number = len(args) > 2 and not args[2].dim()
        return has_masks(op, args) and not is_number
    checks = _name(op) in _CHECKS or bool(kwargs.get("check_errors"))
    return checks or not _WAITS.isdisjoint(op.tags)
