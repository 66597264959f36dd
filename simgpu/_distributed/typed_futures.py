"""Futures of a list of tensors as C++ means it: DDP's Reducer looks at their type.

A future that Python completes holds a Python object, whatever it is completed with. So TorchScript
waits for such a one and then returns the tensors, in a future of its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from simgpu._runtime import late_errors

Tensor = torch.Tensor


class Awaitable(Protocol):
    """What `after` waits for."""

    error: BaseException | None

    def then(self, callback: Callable[[], object]) -> None: ...
    def done(self) -> bool: ...


def completed(tensors: list[Tensor]) -> Any:
    """A future that holds `tensors`."""
    tensors = tensors or [torch.empty(0, device="cpu")]  # C++ could not tell of what the list is
    return torch._C.fork(lambda: tensors)


def after(awaited: Sequence[Awaitable], tensors: list[Tensor]) -> Any:
    """A future that holds `tensors` once all of `awaited` are done, or fails as one of them did."""
    if all(each.done() and each.error is None for each in awaited):
        return completed(tensors)
    done: torch.futures.Future[None] = torch.futures.Future()
    token = next(_tokens)
    left = itertools.count(len(awaited) - 1, -1)

    def one_is_done() -> None:
        if next(left) == 0:
            error = next((each.error for each in awaited if each.error is not None), None)
            if error is not None:
                late_errors.note(token, error)
            done.set_result(None)

    for each in awaited:
        each.then(one_is_done)
    return _scripted()(done, tensors, token)


_tokens = itertools.count()


@functools.cache
def _scripted() -> Callable[..., Any]:
    from simgpu._distributed import scripted_futures

    chain: Callable[..., Any] = scripted_futures.chain
    return chain
