"""`replicate`: copies of a module on several devices.

The public function; how a replica is built is in `_replication.plan`.

May import: `_replication`, `_devices`, `torch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import torch

from dataparallel._devices import DeviceLike, resolve_all
from dataparallel._replication.plan import Plan

__all__ = ["replicate"]

T = TypeVar("T", bound=torch.nn.Module)


def replicate(network: T, devices: Sequence[DeviceLike], detach: bool = False) -> list[T]:
    """Make a replica of a module on each device.

    Args:
        network: a module whose parameters and buffers are on `devices[0]`.
        devices: integers count devices of the type the parameters are on. A device may be named
            several times.
        detach: cut the replicas off from autograd, but for the first, which then holds the
            original's tensors themselves.

    Returns:
        One module for each device. Its parameters are its own, no leaves, and their gradients sum
        up in the original's; tied parameters stay tied and strides are kept. The first replica's
        parameters and buffers share memory with the original, so that its in-place updates last.
        Attributes, hooks and modes are the original's at the time of the call.

    Raises:
        ValueError: a lazy module, whose parameters have no shapes yet.
        RuntimeError: a tensor that is not on `devices[0]`, a compiled module, or Python modules
            inside a ScriptModule.

    Source: torch/nn/parallel/replicate.py.
    """
    plan = Plan(network)
    targets = resolve_all(devices, plan.tensors)
    if not targets:
        return []
    for tensor in plan.tensors:
        if tensor.device != targets[0]:
            raise RuntimeError(
                f"all tensors must be on devices[0], which is {targets[0]}, but a parameter or "
                f"buffer of {type(network).__name__} is on {tensor.device}; move it there with "
                ".to() first"
            )
    return cast(list[T], plan.replicas(targets, detach))
