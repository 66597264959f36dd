"""`tensor.data = other`, and with it `Module.to`, between the CPU and a simulated device.

A module moves by assigning `data` of each Parameter object, so that an optimizer built before the
move keeps training the same objects. PyTorch allows that only between device types whose tensors
have the same C++ implementation. Between the CPU and a simulated device, the two tensor objects
exchange their implementations instead (`torch._C._swap_tensor_impl`), with the same result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Patch, Row

_CROSSING = {"cpu", DEVICE_TYPE}
_data: Any = torch.Tensor.data
_known_to_be_alike: Callable[..., bool] = torch._has_compatible_shallow_copy_type


def _crosses(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return {tensor.device.type, other.device.type} == _CROSSING


class _PerThread(threading.local):
    """Whether the calling thread is moving a module of TorchScript."""

    scripted = False


_per_thread = _PerThread()
_apply: Any = torch.jit.ScriptModule._apply


def _may_exchange_data(*pair: torch.Tensor) -> bool:
    """Whether `pair[0].data = pair[1]` is possible; `Module._apply` asks this."""
    return _known_to_be_alike(*pair) or (_crosses(*pair) and not _per_thread.scripted)


def _apply_scripted(self: Any, *args: Any, **kwargs: Any) -> Any:
    """`ScriptModule._apply`: C++ keeps the parameters, and would not see what becomes of ours."""
    outer, _per_thread.scripted = _per_thread.scripted, True
    try:
        return _apply(self, *args, **kwargs)
    finally:
        _per_thread.scripted = outer


def _get_data(self: torch.Tensor) -> torch.Tensor:
    return _data.__get__(self)  # type: ignore[no-any-return]


def _set_data(self: torch.Tensor, other: torch.Tensor) -> None:
    if not (isinstance(other, torch.Tensor) and _crosses(self, other)):
        _data.__set__(self, other)
        return
    hooks, after_hooks = self._backward_hooks, self._post_accumulate_grad_hooks
    gradient = self.grad
    incoming = other.detach().requires_grad_(self.requires_grad and self.is_leaf)
    torch._C._swap_tensor_impl(self, incoming)
    if hooks is not None:
        self._backward_hooks = hooks
    if after_hooks is not None:
        self._post_accumulate_grad_hooks = after_hooks
    if gradient is not None:
        # The same gradient object, moved along: a gradient elsewhere than its parameter is refused.
        with torch.no_grad():
            gradient.data = gradient.to(self.device)
        self.grad = gradient


def _delete_data(self: torch.Tensor) -> None:
    _data.__delete__(self)  # which raises, and says why


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch.Tensor",
        "data",
        value=property(_get_data, _set_data, _delete_data),
        why="a tensor keeps its identity when its data moves between the CPU and a device",
    ),
    Patch(
        "torch.jit.ScriptModule",
        "_apply",
        value=_apply_scripted,
        why="scripted modules keep their parameters in C++, which has to be given new ones",
    ),
    Patch(
        "torch",
        "_has_compatible_shallow_copy_type",
        value=_may_exchange_data,
        why="Module.to asks whether it may assign `data`, which between CPU and device it now may",
    ),
)
