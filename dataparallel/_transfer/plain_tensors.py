"""Transfers see tensors as C++ sees them: without the Python of subclasses and of function modes.

`torch.nn.parallel` moves tensors in C++, for which a tensor of a subclass is a tensor. No method of
the class and no `__torch_function__` mode is called, new results are plain tensors, and a result
that is an argument has the argument's class. A `__torch_dispatch__` is called from C++ too, so
tensors of classes that have one stay what they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

_PLAIN = {Tensor, torch.nn.Parameter}
_as_subclass: Any = torch._C.TensorBase.as_subclass
_no_dispatch: Any = torch._C._disabled_torch_dispatch_impl


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has no subclass but Parameter."""
    return type(tensor) in _PLAIN


def as_in_cpp(function: F) -> F:
    """A function that sees its tensors, and those in its lists and tuples, as C++ does."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        is_usual = not torch._C._len_torch_function_stack() and all(map(_is_usual, args))
        if is_usual or torch.compiler.is_compiling():
            return function(*args)
        originals: dict[int, Tensor] = {}
        with torch._C.DisableTorchFunction():
            result = function(*(_mapped(value, _plain, originals) for value in args))
        return _mapped(result, _original, originals)

    return cast(F, call)


def _is_usual(value: Any) -> bool:
    kinds = {*map(type, value)} if type(value) in (list, tuple) else {type(value)}
    return kinds <= _PLAIN or not any(issubclass(kind, Tensor) for kind in kinds - _PLAIN)


def _plain(tensor: Tensor, originals: dict[int, Tensor]) -> Tensor:
    kind: Any = type(tensor)
    if kind.__torch_dispatch__ is not _no_dispatch:
        return tensor
    plain: Tensor = _as_subclass(tensor, Tensor)
    originals[id(plain)] = tensor
    return plain


def _original(tensor: Tensor, originals: dict[int, Tensor]) -> Tensor:
    return originals.get(id(tensor), tensor)


def _mapped(value: Any, change: Callable[..., Tensor], originals: dict[int, Tensor]) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, change, originals) for item in value)
    return change(value, originals) if isinstance(value, Tensor) else value
