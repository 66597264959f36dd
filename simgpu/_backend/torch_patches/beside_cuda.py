"""torch.nn.parallel and torch.cuda for GPUs beside simulated devices, on a build with CUDA.

The functions of torch.nn.parallel take numbers of devices, and then ask which kind the accelerator
is: within `simgpu.devices` a simulated one, though the module may be on GPUs. So each of them has,
for its own length, the accelerator that its module, its tensors or its devices belong to; with
nothing but numbers and tensors of the CPU, that of the caller. Threads that replicas run in have
that of the thread that makes them. What is about GPUs by its name has CUDA for its accelerator.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch

from simgpu._backend.torch_patches.routing import routed
from simgpu._core import world
from simgpu._util import thread_rows
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Table
from simgpu._util.thread_rows import ACCELERATOR, CUDA, NEITHER

_ALONE = not torch._C._has_cuda  # then nothing here is needed
PATCHES = Table()


def _kind(value: Any) -> int:
    """The accelerator that the first module, tensor or device in `value` belongs to."""
    if isinstance(value, torch.device):
        return world.kind_of(value)
    if isinstance(value, torch.Tensor):
        return world.kind_of(value.device)
    if isinstance(value, str):
        try:
            return world.kind_of(torch.device(value))
        except RuntimeError:  # not the name of a device
            return NEITHER
    parts: Iterable[Any] = ()
    if isinstance(value, torch.nn.Module) and "_parameters" in vars(value):  # is initialized
        parts = itertools.chain(value.parameters(), value.buffers())
    elif isinstance(value, (list, tuple)):
        parts = value
    elif isinstance(value, dict):
        parts = value.values()
    return next(filter(None, map(_kind, parts)), NEITHER)


@PATCHES.around(
    "torch.nn.parallel.data_parallel.DataParallel.__init__",
    "torch.nn.parallel.data_parallel.DataParallel.forward",
    "torch.nn.parallel.data_parallel.data_parallel",
    "torch.nn.parallel.data_parallel",
    "torch.nn.parallel.parallel_apply.parallel_apply",
    "torch.nn.parallel.data_parallel.parallel_apply",
    "torch.nn.parallel.parallel_apply",
    "torch.nn.parallel._functions.Scatter.forward",
    "torch.nn.parallel.comm.scatter",
    "torch.cuda.comm.scatter",
    kept=_ALONE,
    why="integers mean devices of the type that the arguments are on",
)
def _by_kind(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`stock` with the accelerator that its arguments belong to, the first one that says so."""
    if not world.active_devices or not world.may_be_cuda():
        return stock(*args, **kwargs)
    kind = _kind([*args, *kwargs.values()])
    with nullcontext() if kind == NEITHER else world.taken(kind):
        return stock(*args, **kwargs)


@PATCHES.around(
    "torch.Tensor.cuda",
    kept=_ALONE,
    why="in C++, x.cuda(1) is device 1 of the accelerator, which may be simulated",
)
@PATCHES.around(
    "torch.cuda.Stream.__enter__",
    "torch.cuda.Stream.__exit__",
    kept=_ALONE,
    why="C++ can make only streams of the accelerator current",
)
def _for_cuda(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`stock` with CUDA for its accelerator."""
    if not world.active_devices or not world.may_be_cuda():
        return stock(*args, **kwargs)
    with world.taken(CUDA):
        return stock(*args, **kwargs)


class _Thread(threading.Thread):
    """A thread that has the accelerator of the thread that made it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._accelerator = thread_rows.per_thread.row[ACCELERATOR]

    def run(self) -> None:
        with world.taken(self._accelerator):
            super().run()


class _Threading:
    """The module `threading`, but for its threads."""

    Thread = _Thread

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


PATCHES.add(
    "torch.nn.parallel.parallel_apply.threading",
    value=_Threading(),
    kept=_ALONE,
    why="its threads inherit the accelerator of the thread that starts them",
)
for _name, _ours in (
    ("_get_available_device_type", lambda: DEVICE_TYPE),
    ("_get_all_device_indices", lambda: list(range(world.device_count()))),
):
    PATCHES.add(
        f"torch.nn.parallel.data_parallel.{_name}",
        wrap=routed(_ours, lambda: world.may_be_cuda() and world.is_simulated()),
        kept=_ALONE,
        why="DataParallel looks for CUDA first",
    )
