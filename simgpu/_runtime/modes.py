"""Modes of the program, which see the functions and operators of torch that are called in them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def no_modes() -> bool:
    """Whether PyTorch's functions can be called as they are: no mode of the user would see it."""
    return not _function_modes() and not _dispatch_modes()


def without_modes() -> AbstractContextManager[Any]:
    """A block without modes of operators; `torch._C.DisableTorchFunction` leaves out the others."""
    return nullcontext() if no_modes() else _disable_current_modes()  # slow at first
