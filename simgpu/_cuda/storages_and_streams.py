"""Storages, torch.Generator, torch.Stream, torch.Event and torch.accelerator under `as_cuda`.

`torch.cuda.Stream` and `torch.cuda.Event` are in `torch_cuda`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.parallel._functions

from simgpu._cuda.renaming import CUDA, WHY_RENAMED, renamed, takes_device, to_simgpu
from simgpu._patches import Patch, Row


def _current_accelerator(check_available: bool = False) -> torch.device:
    """`torch.accelerator.current_accelerator()`."""
    return torch.device(CUDA)


def _storage_device(self: Any) -> torch.device:
    found: torch.device = torch._C.StorageBase.device.__get__(self)  # type: ignore[attr-defined]
    return found


def _stream_for(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda device: stock(to_simgpu(device))


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch.UntypedStorage",
        "device",
        value=renamed(_storage_device),
        why=WHY_RENAMED,
    ),
    Patch(
        "torch.UntypedStorage",
        "__new__",
        wrap=lambda stock: staticmethod(takes_device(stock)),
        why='takes device="cuda:1"',
    ),
    Patch("torch.UntypedStorage", "to", wrap=takes_device, why='takes device="cuda:1"'),
    *(
        Patch(
            owner,
            "__new__",
            wrap=lambda stock: staticmethod(takes_device(stock, 1)),
            why='takes device="cuda:1"; the class is simgpu\'s proxy already',
        )
        for owner in ("torch.Generator", "torch.Stream", "torch.Event")
    ),
    Patch(
        "simgpu._backend.generators.DeviceGenerator",
        "device",
        wrap=lambda stock: renamed(stock.fget),
        why=WHY_RENAMED,
    ),
    Patch(
        "simgpu._runtime.streams.Stream",
        "device",
        wrap=lambda stock: renamed(stock.__get__),
        why=WHY_RENAMED,
    ),
    Patch(
        "simgpu._runtime.events.Event",
        "device",
        wrap=lambda stock: renamed(stock.__get__),
        why=WHY_RENAMED,
    ),
    *(
        Patch(
            owner,
            name,
            value=_current_accelerator,
            needs=name,
            why="libraries ask for the accelerator of the machine, which goes by the name of CUDA",
        )
        for owner, name in (
            ("torch.accelerator", "current_accelerator"),
            ("torch._C", "_get_accelerator"),
            ("torch._C", "_accelerator_getAccelerator"),
        )
    ),
    Patch(
        "torch.nn.parallel._functions",
        "_get_stream",
        wrap=_stream_for,
        why="torch.nn.parallel.scatter names the device cuda:1",
    ),
)
