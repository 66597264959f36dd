"""Launches without values: kernels return memory that is not written, and take no time.

What a `simgpu.clock` measures depends on the shapes of tensors and not on their values, so programs
much larger than this machine can be timed: memory that is never touched takes no pages. Kernels of
little data are computed all the same, since programs decide by them. Call it before
`simgpu.devices`.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._core import launch
from simgpu._core.operators import tensors_in

LITTLE = 4096  # bytes that a kernel reads or writes, up to which it is computed

_META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
_stock = launch.Kernel.__init__


def leave_out_values() -> None:
    """From now on, kernels that are made do not compute."""
    launch.Kernel.__init__ = _without_values  # type: ignore[method-assign]


def _without_values(self: launch.Kernel, op: Any, run: Any = None) -> None:
    _stock(self, op, run)
    if run is None:
        self.run = _Shaped(op, self.run)


class _Shaped:
    """Runs an operator for its shapes only, computed by the meta device, once for each call."""

    def __init__(self, op: Any, run: Any) -> None:
        self._op, self._run = op, run
        self._known: dict[Any, Any] = {}
        arguments = [_names(argument) for argument in op._schema.arguments]
        # For each result the argument that it is; None where it is new memory.
        self._same = [
            None if names is None or names not in arguments else arguments.index(names)
            for names in map(_names, op._schema.returns)
        ]
        self._is_view = any(
            each.alias_info is not None and not each.alias_info.is_write
            for each in op._schema.returns
        )

    def __call__(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = list(tensors_in(*args, *kwargs.values()))
        little = sum(tensor.nbytes for tensor in tensors) <= LITTLE and tensors
        if little or self._is_view:
            return self._run(keys, *args, **kwargs)
        key = _signature(args), _signature(tuple(kwargs.items()))
        try:
            layouts = self._known[key]
        except KeyError:
            layouts = self._known[key] = self._shapes(args, kwargs)
        if layouts is None:
            return self._run(keys, *args, **kwargs)
        if "out" in kwargs:
            return kwargs["out"]
        results = [
            _empty(layout) if same is None else args[same]
            for layout, same in zip(layouts, self._same, strict=True)
        ]
        return results[0] if len(results) == 1 else tuple(results) if results else None

    def _shapes(self, args: Any, kwargs: Any) -> list[Any] | None:
        """The layout of each result; None of what has to be computed."""
        try:
            with torch.no_grad():
                found = self._op._handle.redispatch_boxed(_META, *_meta(args), **_meta(kwargs))
        except Exception:
            return None
        out = kwargs.get("out")
        if out is not None and (not isinstance(out, torch.Tensor) or out.shape != found.shape):
            return None
        if len(self._same) == 0:
            return []
        results = found if len(self._same) > 1 else (found,)
        if any(not tensor.is_floating_point() for tensor in tensors_in(*results)):
            return None  # indices and masks, by which others decide
        return [_layout(each) for each in results]


def _names(value: Any) -> Any:
    """What a schema calls the memory of an argument or a result; None of what is not shared."""
    info = value.alias_info
    return None if info is None or not info.before_set else frozenset(info.before_set)


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_signature, value))
    return repr(value)


def _meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, dict):
        return {name: _meta(each) for name, each in value.items()}
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, (list, tuple)):
        return type(value)(map(_meta, value))
    return value


def _layout(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    return [_layout(each) for each in value] if isinstance(value, (list, tuple)) else value


def _empty(layout: Any) -> Any:
    if isinstance(layout, list):
        return [_empty(each) for each in layout]
    if isinstance(layout, tuple):
        shape, stride, dtype = layout
        return torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
    return layout
