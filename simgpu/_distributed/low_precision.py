"""`DistributedDataParallel(mixed_precision=...)`: gradients in its buckets from the first step on.

PyTorch's Reducer makes other buckets once it knows the dtype of low precision, and goes on to copy
gradients into the old ones: what ranks send in the first step is whatever the new memory holds, on
GPUs too. Before the second step it makes all buckets anew. Here the gradients are put where they
belong before they are sent.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch

_low: weakref.WeakSet[Any] = weakref.WeakSet()
"""The reducers whose buckets are of low precision."""


def telling(stock: Callable[..., None]) -> Callable[..., None]:
    """`Reducer._set_mixed_precision_param_dtype`, which says what a GPU would do."""

    @functools.wraps(stock)
    def set_dtype(self: Any, dtype: torch.dtype) -> None:
        stock(self, dtype)
        _low.add(self)
        warnings.warn(
            "DistributedDataParallel(mixed_precision=...): on a GPU the gradients of the first "
            "step are not those of the model, since PyTorch's Reducer sends buckets that it has "
            "not filled. Simulated devices fill them",
            UserWarning,
            stacklevel=3,
        )

    return set_dtype


def filling(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`Reducer._run_allreduce_hook`, which sends a bucket that holds the gradients."""

    @functools.wraps(stock)
    def run(self: Any, bucket: Any) -> Any:
        if self in _low:
            with torch.no_grad():
                _fill(bucket)
        return stock(self, bucket)

    return run


def _fill(bucket: Any) -> None:
    for view, parameter in zip(bucket.gradients(), bucket.parameters(), strict=True):
        if parameter.grad is None:
            view.zero_()
        else:
            view.copy_(parameter.grad)
