"""The factor of ReduceOp.PREMUL_SUM, which the dispatcher loses.

An operator gets the reduction in a box that tells its kind only. So the methods of ProcessGroup
that reduce note the factor for the kernel that they call.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

METHODS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
)

_ReduceOp = torch._C._distributed_c10d.ReduceOp
_PREMUL_SUM: Any = _ReduceOp.PREMUL_SUM


class _PerThread(threading.local):
    factor: Any = None


_per_thread = _PerThread()


def _factor(op: Any) -> Any:
    """The number or tensor that is multiplied by; older releases tell it to pickle alone."""
    return op.__getstate__()[1]


def noting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A method of ProcessGroup, with the factor noted for as long as it runs."""

    @functools.wraps(stock)
    def call(*args: Any, **kwargs: Any) -> Any:
        for value in (*args[1:], *kwargs.values()):
            op = getattr(value, "reduceOp", value)
            if isinstance(op, _ReduceOp) and op == _PREMUL_SUM:
                outer, _per_thread.factor = _per_thread.factor, _factor(op)
                try:
                    return stock(*args, **kwargs)
                finally:
                    _per_thread.factor = outer
        return stock(*args, **kwargs)

    return call


def current() -> Any:
    """The factor of the PREMUL_SUM that is being called.

    Raises where C++ called it, which leaves no trace of the factor.
    """
    if _per_thread.factor is None:
        raise NotImplementedError(
            "the factor of ReduceOp.PREMUL_SUM is not known here: call it through torch.distributed"
        )
    return _per_thread.factor
