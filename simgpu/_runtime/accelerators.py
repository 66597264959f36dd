"""Which devices PyTorch takes for its accelerator: simulated ones, or GPUs where CUDA is there too.

PyTorch has one accelerator at a time. Outside of `simgpu.devices` that is CUDA, within a block it
is the simulated devices; but a backward pass or a call of torch.nn.parallel that is about GPUs has
CUDA for its accelerator within a block, too (`taken`). On a build without CUDA, or where C++ cannot
be answered (`simgpu._native.accelerator_choice`), all of this costs a look at a boolean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from simgpu import _naming
from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import thread_state, world
from simgpu._runtime.thread_state import ACCELERATOR

# What a thread's row says, for `simgpu._native.accelerator_choice`: nothing, or which it is.
NEITHER, CUDA, SIMULATED = 0, 1, 2

_cuda_is_there = False


def let_cuda_be_there() -> None:
    """Let GPUs be the accelerator where there are no simulated devices; for good."""
    global _cuda_is_there
    _cuda_is_there = True


def may_be_cuda() -> bool:
    """Whether CUDA may be the accelerator of a call, so that its tensors have to be looked at."""
    return _cuda_is_there and "cuda" not in _naming.names


def gpus_have_tensors() -> bool:
    """Whether CUDA may be the accelerator, and has been started, so that a GPU may have tensors."""
    return may_be_cuda() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def is_simulated(*_: object, **__: object) -> bool:
    """Whether the accelerator is simulated for the calling thread, whatever it is asked with."""
    if not _cuda_is_there:
        return bool(world.active_devices)
    if not world.active_devices:
        return False
    return thread_state.per_thread.row[ACCELERATOR] != CUDA


def kind_of(device: torch.device) -> int:
    """Which accelerator a device belongs to; NEITHER for the CPU and the like."""
    if device.type in ("cpu", "meta"):
        return NEITHER
    return SIMULATED if device.type == DEVICE_TYPE else CUDA


@contextmanager
def taken(kind: int) -> Iterator[None]:
    """Within the block, the calling thread has this kind of device for its accelerator."""
    row = thread_state.per_thread.row
    outer, row[ACCELERATOR] = row[ACCELERATOR], kind
    try:
        yield
    finally:
        row[ACCELERATOR] = outer
