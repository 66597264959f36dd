"""`torch.set_default_tensor_type("torch.cuda.FloatTensor")` under `as_cuda`.

C++ knows the type for real CUDA alone. What it means is said by two newer functions: a default
dtype, and a default device. One thing stays with the CPU: `torch.Tensor(2)`, a class that C++
calls itself, as with `torch.set_default_device`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._backend.tensor_types import DTYPES
from simgpu._cuda.renaming import CUDA
from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Action, Patches, Row

_HOMES = (f"torch.{CUDA}.", f"torch.{DEVICE_TYPE}.")


def _dtype_on_device(kind: Any) -> torch.dtype | None:
    """The dtype of a type of floating-point tensors on a device, or None for all else."""
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    for home in _HOMES:
        if name.startswith(home) and name.endswith("Tensor"):
            dtype = DTYPES.get(name.removeprefix(home).removesuffix("Tensor"))
            return dtype if dtype is not None and dtype.is_floating_point else None
    return None


def _setter(stock: Callable[[Any], None], on_device: list[bool]) -> Callable[[Any], None]:
    def set_default_tensor_type(kind: Any) -> None:
        """Let floating-point tensors be of this type unless a call says otherwise."""
        dtype = _dtype_on_device(kind)
        if dtype is None:
            stock(kind)  # which raises for what is no type of floating-point tensors
            _leave_device(on_device)
        else:
            torch.set_default_dtype(dtype)
            torch.set_default_device(CUDA)
            on_device.append(True)

    return set_default_tensor_type


def _leave_device(on_device: list[bool]) -> None:
    """Let the CPU be the default device again, if it is none because of a default type."""
    if on_device:
        torch.set_default_device(None)
        on_device.clear()


def _replace_setter(patches: Patches) -> None:
    on_device: list[bool] = []
    patches.set(torch, "set_default_tensor_type", _setter(torch.set_default_tensor_type, on_device))
    patches.then(lambda: _leave_device(on_device))


PATCHES: tuple[Row, ...] = (
    Action(
        "`torch.set_default_tensor_type`, and the default device that it sets",
        run=_replace_setter,
        why="C++ needs real CUDA for it",
        adds=("torch.set_default_tensor_type",),
    ),
)
