"""What an operator's schema says of it."""

from __future__ import annotations

import functools

import torch

_ONLY_MEMORY = ("empty", "new_empty")


def is_view(op: torch._ops.OpOverload) -> bool:
    """Whether all that an operator returns are its arguments, seen otherwise."""
    aliases = [result.alias_info for result in op._schema.returns]
    return bool(aliases) and all(alias and not alias.is_write for alias in aliases)


@functools.cache
def launches_nothing(op: torch._ops.OpOverload) -> bool:
    """Whether CUDA runs no kernel for it: fresh memory that nobody fills, and views."""
    name = op._schema.name.removeprefix("aten::")
    return name.startswith(_ONLY_MEMORY) or is_view(op)
