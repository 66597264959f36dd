"""`torch.autocast("cuda")` under `as_cuda`: the functions of torch behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._cuda.renaming import CUDA
from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Patch, Row


def _takes_device_type(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with "cuda" translated, and with our device type where none means CUDA."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device_type") == CUDA:
            kwargs["device_type"] = DEVICE_TYPE
        elif not args and not kwargs:
            args = (DEVICE_TYPE,)  # is_autocast_enabled()
        elif args and args[0] == CUDA:
            args = (DEVICE_TYPE, *args[1:])
        elif len(args) == 1 and isinstance(args[0], bool):
            args = (DEVICE_TYPE, args[0])  # set_autocast_enabled(True)
        return function(*args, **kwargs)

    return call


def _get_autocast_gpu_dtype() -> torch.dtype:
    return torch.get_autocast_dtype(DEVICE_TYPE)


def _set_autocast_gpu_dtype(dtype: torch.dtype) -> None:
    torch.set_autocast_dtype(DEVICE_TYPE, dtype)


_TYPED = (
    "get_autocast_dtype",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "is_autocast_enabled",
)

PATCHES: tuple[Row, ...] = (
    *(
        Patch(
            "torch",
            name,
            wrap=_takes_device_type,
            why='torch.autocast("cuda") calls these, and kernels ask about simulated devices',
        )
        for name in _TYPED
    ),
    Patch(
        "torch",
        "get_autocast_gpu_dtype",
        value=_get_autocast_gpu_dtype,
        why="the old name of the same",
    ),
    Patch(
        "torch",
        "set_autocast_gpu_dtype",
        value=_set_autocast_gpu_dtype,
        why="the old name of the same",
    ),
)
