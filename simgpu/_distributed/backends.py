"""The backends of a process group: by whose rules each goes, and what C++ drops of it.

C++ holds its own half of an object that was made in Python. The Python half, and what it knows,
lives as long as its group here.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from simgpu._naming import DEVICE_TYPE

_get_backend: Callable[..., Any] = distributed.ProcessGroup._get_backend
_kinds: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_backends: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
# What each wrapper of the debug mode wraps.
_wrapped: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# What stands in the place of NCCL's backends, where ranks are threads.
nccl_stand_ins: weakref.WeakSet[Any] = weakref.WeakSet()


def backend_of(group: Any, device: torch.device | str = DEVICE_TYPE) -> Any:
    """The backend that a group has for a sort of devices, out of the wrapper of its debug mode."""
    backend = _get_backend(group, torch.device(device))
    while hasattr(backend, "wrapped_pg"):
        backend = backend.wrapped_pg
    return backend


def kind_of(group: Any) -> str:
    """The rules that hold in a group: "nccl" or "gloo"."""
    known = _kinds.get(group)
    return known or ("nccl" if backend_of(group).name() == "nccl" else "gloo")


def take_kind(part: Any, whole: Any) -> None:
    """Let the rules of a group hold in a part of it, whose backend C++ has made."""
    _kinds[part] = kind_of(whole)


def keep_backend(group: Any, kind: Any, backend: Any) -> None:
    """Keep the Python half of a backend for as long as its group lives, and the rules of NCCL."""
    _backends.setdefault(group, []).append(backend)
    if kind == distributed.ProcessGroup.BackendType.NCCL or backend in nccl_stand_ins:
        _kinds[group] = "nccl"  # newer releases have CUSTOM ones, too


def keeping_wrapped(stock: Callable[..., Any]) -> Callable[..., Any]:
    """What wraps a backend for the debug mode; the Python half of the backend lives as long."""

    @functools.wraps(stock)
    def wrap(wrapped_pg: Any, *args: Any, **kwargs: Any) -> Any:
        wrapper = stock(wrapped_pg, *args, **kwargs)
        _wrapped[wrapper] = wrapped_pg
        return wrapper

    return wrap
