"""Make replacements of torch's functions: ours for simulated tensors, the stock one for others.

`routed` chooses between the two; `as_in_cpp` shows tensors of subclasses to ours as C++ sees them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from simgpu._core.operators import no_modes

Tensor = torch.Tensor
_PLAIN = (Tensor, torch.nn.Parameter)
_alias: Any = torch._C.TensorBase.as_subclass
_no_dispatch: Any = torch._C._disabled_torch_dispatch_impl


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


def as_in_cpp(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors, and lists of them, that calls no Python of classes or function modes.

    For C++ a tensor of a subclass is a tensor: no method is overridden, new results are plain, and
    a result that is an argument has the argument's class. A `__torch_dispatch__` is called from C++
    too, so tensors of classes that have one stay what they are.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        if no_modes() and all(map(_is_plain, values)):
            return function(*args, **kwargs)
        originals: dict[int, Tensor] = {}
        with torch._C.DisableTorchFunction():
            args = tuple(_mapped(value, lambda tensor: _plain(tensor, originals)) for value in args)
            kwargs = {
                name: _mapped(value, lambda tensor: _plain(tensor, originals))
                for name, value in kwargs.items()
            }
            found = function(*args, **kwargs)
        return _mapped(found, lambda tensor: originals.get(id(tensor), tensor))

    return call


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN or not isinstance(value, Tensor)


def _plain(tensor: Tensor, originals: dict[int, Tensor]) -> Tensor:
    kind: Any = type(tensor)
    if kind in _PLAIN or kind.__torch_dispatch__ is not _no_dispatch:
        return tensor
    plain: Tensor = _alias(tensor, Tensor)
    originals[id(plain)] = tensor
    return plain


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, change) for item in value)
    return value
