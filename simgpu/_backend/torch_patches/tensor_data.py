"""`tensor.data = other`, and with it `Module.to`, between the CPU and a simulated device.

A module moves by assigning `data` of each Parameter object, so that an optimizer built before the
move keeps training the same objects. PyTorch allows that between the CPU and CUDA, and not between
the CPU and a device type from outside; here it does. All else stays the tensor's own, as on CUDA:
its gradient, which does not move along, its hooks, its version, and who refers to it in C++.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._native import tensor_keys
from simgpu._patches import Patch, Row

_data: Any = torch.Tensor.data
_known_to_be_alike: Any = torch._has_compatible_shallow_copy_type


def _may_exchange_data(*pair: torch.Tensor) -> bool:
    """Whether `pair[0].data = pair[1]` is possible; `Module._apply` asks this."""
    return _known_to_be_alike(*pair) or tensor_keys.are_alike(*pair)


def _get_data(self: torch.Tensor) -> torch.Tensor:
    return _data.__get__(self)  # type: ignore[no-any-return]


def _set_data(self: torch.Tensor, other: torch.Tensor) -> None:
    if (
        isinstance(other, torch.Tensor)
        and not _known_to_be_alike(self, other)
        and tensor_keys.are_alike(self, other)
    ):
        tensor_keys.assign(self, other, _data.__set__)
    else:
        _data.__set__(self, other)


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
        "torch",
        "_has_compatible_shallow_copy_type",
        value=_may_exchange_data,
        why="Module.to asks whether it may assign `data`, which between CPU and device it now may",
    ),
)
