"""From host memory to device memory: where a simulated device takes ownership of a result.

Ownership is a label (`_relabel`) plus an entry in the device's ledger that ends with the memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from simgpu import _world
from simgpu._memory_functions import format_bytes
from simgpu._relabel import DEVICE_TYPE, LABELS, relabel
from simgpu._world import active
from simgpu.errors import OutOfMemoryError

_BLOCK = 512  # bytes; CUDA's caching allocator rounds every allocation up to a multiple of this


def adopt(host: torch.Tensor, index: int) -> torch.Tensor:
    """Turn a host tensor that owns fresh memory into a tensor of device `index`.

    The caller must not use `host` afterwards: it has no memory of its own any more.
    """
    try:
        device = active[index]
    except IndexError:
        device = _world.device(index)  # raises, and says what there is
    try:
        nbytes = host.untyped_storage().nbytes()
    except NotImplementedError:  # sparse: asking first would cost every dense result
        return adopt_composite(host, index)
    nbytes = (nbytes + _BLOCK - 1) & -_BLOCK
    allocation = device.take(nbytes)
    if allocation is None:
        raise_out_of_memory(device, nbytes)
    host._simgpu_allocation = allocation  # type: ignore[attr-defined]
    if host.is_complex():
        return with_bits_of(host, relabel(host, LABELS[index]))
    return relabel(host, LABELS[index])


def with_bits_of(host: torch.Tensor, owned: torch.Tensor) -> torch.Tensor:
    """`owned`, conjugated or negated lazily where `host` is."""
    if host.is_conj():
        owned = torch._conj(owned)
    if host.is_neg():
        owned = torch._neg_view(owned)
    return owned


def adopt_composite(host: torch.Tensor, index: int) -> torch.Tensor:
    """`adopt` for a sparse or nested tensor, part by part."""
    from simgpu._composite import to_device  # which is built on this file

    return to_device(host, index)


def make_sure_of_room(index: int, shape: Sequence[int], dtype: torch.dtype | None = None) -> None:
    """Raise if device `index` has no room for a tensor, before the host makes one."""
    device = _world.device(index)
    nbytes = math.prod(shape) * (torch.get_default_dtype() if dtype is None else dtype).itemsize
    if nbytes > device.limit - device.allocated:
        raise_out_of_memory(device, nbytes)


def raise_out_of_memory(device: _world.Device, nbytes: int) -> NoReturn:
    """Raise what CUDA raises when `device` has no room for `nbytes` more."""
    device.out_of_memory_count += 1
    room = device.limit - device.allocated
    raise OutOfMemoryError(
        f"{DEVICE_TYPE} out of memory. Tried to allocate {format_bytes(nbytes)}. GPU "
        f"{device.index} has a total capacity of {format_bytes(device.capacity)} of which "
        f"{format_bytes(room)} is free. Of the allocated memory {format_bytes(device.allocated)} "
        "is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    )


def is_composite(tensor: torch.Tensor) -> bool:
    """Whether a tensor is made of other tensors (sparse, nested) and has no memory of its own."""
    return tensor.layout is not torch.strided or tensor.is_nested


def adopt_all(results: Any, index: int) -> Any:
    """`adopt` every tensor of a kernel's results; numbers and undefined tensors pass through."""
    if isinstance(results, torch.Tensor):
        return adopt_composite(results, index) if results.is_nested else adopt(results, index)
    if isinstance(results, (tuple, list)):
        return [adopt_all(result, index) for result in results]
    return results
