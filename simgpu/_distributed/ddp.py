"""DistributedDataParallel: mixed precision, communication hooks, and ranks that join early.

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
"""The reducers that have low-precision buckets."""


def with_low_precision(stock: Callable[..., None]) -> Callable[..., None]:
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


def with_filled_buckets(stock: Callable[..., Any]) -> Callable[..., Any]:
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


# The sum by which DistributedDataParallel counts the ranks that have not joined yet.
#
# Its Reducer waits for that call and asks for its future afterwards. C++ holds half of the Work
# only: here the Reducer has the other half too.

_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def keep_join_work(stock: Callable[..., None]) -> Callable[..., None]:
    """`Reducer._set_forward_pass_work_handle`, which keeps the Work until the next one comes."""

    @functools.wraps(stock)
    def set_handle(self: Any, work: Any, *args: Any, **kwargs: Any) -> None:
        _works[self] = work
        stock(self, work, *args, **kwargs)

    return set_handle


# Communication hooks of DistributedDataParallel: what C++ makes of a hook's answer.
#
# It takes None for a future and ends the process. Anything else that is none it refuses without
# saying of what.


def check_hook_result(stock: Callable[..., None]) -> Callable[..., None]:
    """`torch.distributed._register_comm_hook`, with a hook whose answer is looked at."""

    @functools.wraps(stock)
    def register(reducer: Any, state: Any, hook: Callable[..., Any]) -> None:
        stock(reducer, state, _checked(hook))

    return register


def _checked(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def call(state: Any, bucket: Any) -> Any:
        answer = hook(state, bucket)
        if not isinstance(answer, torch._C.Future):
            name = getattr(hook, "__qualname__", repr(hook))
            raise TypeError(
                f"the communication hook {name} returned {type(answer).__name__}, and has to "
                "return a torch.futures.Future of the bucket's tensor, such as "
                "torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()"
                ".then(lambda done: done.value()[0])"
            )
        return answer

    return call
