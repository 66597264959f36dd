"""A decorator for replacements: our function for simulated tensors, the stock one otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def routed(ours: Callable[..., Any], applies: Callable[..., bool]) -> Callable[[Any], Any]:
    """A `wrap` for a row: `ours` is called where `applies(*args, **kwargs)`, else the stock one."""

    def wrap(stock: Callable[..., Any] | None) -> Callable[..., Any]:
        theirs = _missing if stock is None else stock

        def call(*args: Any, **kwargs: Any) -> Any:
            return (ours if applies(*args, **kwargs) else theirs)(*args, **kwargs)

        return call

    return wrap


def _missing(*_: Any, **__: Any) -> Any:
    raise RuntimeError("this build of PyTorch has no CUDA, and the tensors are not simulated ones")
