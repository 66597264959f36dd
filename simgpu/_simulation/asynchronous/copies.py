"""Which copies between host and device block, and when they read the memory of the host.

PyTorch copies by cudaMemcpyAsync and then waits for the stream, unless the copy does not block
(aten/src/ATen/native/cuda/Copy.cu). What CUDA does of the rest (CUDA Runtime API, "API
synchronization behavior"): pageable memory is staged, so it has been read when a copy to the device
returns, and a copy to it has ended when it returns. Pinned memory is read and written when the
copy runs. A copy that changes dtype or layout goes through pageable memory of the host.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._memory.pinned import is_pinned
from simgpu._runtime.instruments import Launch
from simgpu._runtime.launch import is_non_blocking

Tensor = torch.Tensor


def blocks(launch: Launch) -> bool:
    """Whether the host waits for a copy from or to it."""
    if "cpu" not in (launch.source.type, launch.target.type):
        return False
    if not is_non_blocking(launch):
        return True
    if launch.target.type != "cpu":
        return False
    if launch.op != "copy_":
        return False  # into new memory, which is pinned
    target: Tensor = launch.args[0]
    return not (is_pinned(target) and target.is_contiguous())


def staged(launch: Launch) -> tuple[Any, ...] | None:
    """The arguments of a copy from the host that has read them by now; None of one that has not."""
    position = 1 if launch.op == "copy_" else 0
    source: Tensor = launch.args[position]
    dtype = launch.args[0].dtype if position else launch.kwargs.get("dtype") or source.dtype
    plain = source.is_contiguous() and dtype is source.dtype
    if plain and (not position or launch.args[0].shape == source.shape) and is_pinned(source):
        return None
    args = list(launch.args)
    args[position] = source.clone()
    return tuple(args)
