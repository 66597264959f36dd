"""Calls within `torch.inference_mode`, which is of a thread: its tensors are written there alone.

What a call reads and writes is written by other threads, and later: memory that ranks share lives
as long as their group. So its tensors are plain ones, whatever the mode of the program. NCCL
writes memory, and knows of no such mode.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch


def plain_tensors() -> AbstractContextManager[None]:
    """Within it new tensors are plain ones, in inference mode too; none of them has a gradient."""
    return _left() if torch.is_inference_mode_enabled() else contextlib.nullcontext()


@contextlib.contextmanager
def _left() -> Iterator[None]:
    with torch.inference_mode(False), torch.no_grad():
        yield


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs within `plain_tensors`."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with plain_tensors():
            return function(*args, **kwargs)

    return run
