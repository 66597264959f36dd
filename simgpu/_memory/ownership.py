"""`adopt`: a CPU tensor with fresh memory becomes a tensor of a device, and its bytes are counted.

The tensor is relabelled (`dlpack_relabel`) and its bytes are entered in the device's ledger
(`simgpu._runtime.device`) until the memory dies. Where the device is full, OutOfMemoryError is
raised here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from simgpu._memory.composites import is_composite, rebuild
from simgpu._native.dlpack_relabel import LABELS, relabel
from simgpu._runtime import world
from simgpu._runtime.out_of_memory import raise_out_of_memory
from simgpu._runtime.world import active_devices

MANY = 10**6  # elements that take the host a while, so that it is asked for their memory first


def adopt(host: torch.Tensor, index: int) -> torch.Tensor:
    """Turn a host tensor that owns fresh memory into a tensor of device `index`.

    The caller must not use `host` afterwards: it has no memory of its own any more.
    """
    device = active_devices[index] if index < len(active_devices) else world.device(index)
    try:
        storage = host.untyped_storage()
        nbytes = storage.nbytes()
    except NotImplementedError:  # sparse: asking first would cost every dense result
        return to_device(host, index)
    allocation = device.allocate(nbytes, storage)
    if allocation is None:
        raise_out_of_memory(device, nbytes)
    host._simgpu_allocation = allocation  # type: ignore[attr-defined]
    if host.is_complex():
        return with_bits_of(host, relabel(host, LABELS[index]))
    return relabel(host, LABELS[index])


def with_bits_of(host: torch.Tensor, owned: torch.Tensor) -> torch.Tensor:
    """`owned`, conjugated or negated lazily where `host` is."""
    return with_bits(owned, host.is_conj(), host.is_neg())


def with_bits(tensor: torch.Tensor, conjugated: bool, negated: bool) -> torch.Tensor:
    """`tensor`, conjugated or negated lazily."""
    if conjugated:
        tensor = torch._conj(tensor)
    if negated:
        tensor = torch._neg_view(tensor)
    return tensor


def to_device(host: torch.Tensor, index: int) -> torch.Tensor:
    """`adopt`, part by part where the tensor is made of other tensors (sparse, nested)."""
    if not is_composite(host):
        return adopt(host, index)
    return rebuild(host, lambda part: adopt(part, index), index)


def make_sure_of_room(index: int, shape: Sequence[int], dtype: torch.dtype | None = None) -> None:
    """Raise if device `index` has no room for a tensor, before the host makes one."""
    device = active_devices[index] if index < len(active_devices) else world.device(index)
    nbytes = math.prod(shape) * (torch.get_default_dtype() if dtype is None else dtype).itemsize
    if not device.has_ample_room(nbytes) and not device.has_room(nbytes):
        raise_out_of_memory(device, nbytes)


def adopt_all(results: Any, index: int) -> Any:
    """`adopt` every tensor of a kernel's results; numbers and undefined tensors pass through."""
    if isinstance(results, torch.Tensor):
        return to_device(results, index) if results.is_nested else adopt(results, index)
    if isinstance(results, (tuple, list)):
        return [adopt_all(result, index) for result in results]
    return results
