"""What an operator's schema says of it."""

from __future__ import annotations

import torch


def is_view(op: torch._ops.OpOverload) -> bool:
    """Whether all that an operator returns are its arguments, seen otherwise."""
    aliases = [result.alias_info for result in op._schema.returns]
    return bool(aliases) and all(alias and not alias.is_write for alias in aliases)
