"""Communication hooks of DistributedDataParallel: what C++ makes of a hook's answer.

It takes None for a future and ends the process. Anything else that is none it refuses without
saying of what.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def answering(stock: Callable[..., None]) -> Callable[..., None]:
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
