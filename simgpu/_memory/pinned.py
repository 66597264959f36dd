"""Pinned host memory: `is_pinned` and `Tensor.pin_memory` of CPU tensors.

No simulated device needs pages to stay put, so pinned memory is ordinary host memory with a mark.
Two things make it pinned. `torch.empty(..., pin_memory=True)` and other factories
take it from an allocator of its own, a byte copy of the CPU's whose address a storage records
(`simgpu._native.vtables`). What is copied into pinned memory (`Tensor.pin_memory`, and with
it `DataLoader(pin_memory=True)`, or a copy to the host that does not block) gets a mark on its
storage (`storages`). Every view of either is pinned. Nothing else is, but for memory that a
program registers by `cudaHostRegister`.

Memory with a mark is counted (`host_memory`); what C++ takes from the allocator nothing sees.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._core import world
from simgpu._core.allocator_model import host_memory
from simgpu._core.launch import HOST_KEYS
from simgpu._core.operators import copy_, empty_strided
from simgpu._memory.storages import known_state, state_of
from simgpu._native.vtables import allocator
from simgpu._util.thread_rows import CUDA

# A key that has no kernel of its own has the one that PyTorch has for any backend.
_STOCK_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.XLA)
_aten = torch.ops.aten
_stock_pin = _aten._pin_memory.default._handle.redispatch_boxed
_stock_is_pinned = _aten.is_pinned.default._handle.redispatch_boxed


class _Mark:
    """What a storage has for as long as its memory is pinned."""

    def __init__(self, nbytes: int) -> None:
        host_memory.add(id(self), nbytes)

    _remove = host_memory.remove  # also when the interpreter has emptied this module

    def __del__(self) -> None:
        self._remove(id(self))


def mark(storage: torch.UntypedStorage) -> None:
    """Call the memory of a host storage pinned for as long as it lives."""
    state_of(storage).pinned = _Mark(storage.nbytes())


def mark_result(result: torch.Tensor) -> torch.Tensor:
    """Call the memory of a fresh host tensor pinned for as long as it lives."""
    mark(result.untyped_storage())
    return result


def check_not_wanted(pin_memory: bool | None) -> None:
    """Raise where pinned memory was asked of a device."""
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")


# Host memory that a program has called pinned itself (cudaHostRegister): bytes by address.
registered: dict[int, int] = {}


def is_pinned(self: torch.Tensor, device: torch.device | None = None) -> bool:
    """`Tensor.is_pinned` of a CPU tensor."""
    if world.device_count():
        storage = self.untyped_storage()
        state = known_state(storage)
        if (state is not None and state.pinned) or allocator.made(storage):
            return True
        at = self.data_ptr() if registered else 0
        if any(begin <= at < begin + nbytes for begin, nbytes in registered.items()):
            return True
        if not world.may_be_cuda():
            return False
        with world.taken(CUDA):  # whose allocator may have made it
            return bool(_stock_is_pinned(_STOCK_KEYS, self, None))
    return bool(_stock_is_pinned(_STOCK_KEYS, self, device))


def pin_memory(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """`Tensor.pin_memory` of a CPU tensor that is not pinned: a pinned copy, strides kept."""
    if not world.device_count():
        return _stock_pin(_STOCK_KEYS, self, device)  # type: ignore[no-any-return]
    options: dict[str, Any] = {"dtype": self.dtype, "device": torch.device("cpu")}
    pinned = empty_strided(HOST_KEYS, self.shape, self.stride(), **options)
    copy_(HOST_KEYS, pinned, self)
    return mark_result(pinned)


_libraries: list[torch.library.Library] = []


def install() -> None:
    """Register pinning for CPU tensors; without simulated devices it stays PyTorch's own."""
    library = torch.library.Library("aten", "IMPL", "CPU")  # type: ignore[no-untyped-call]
    library.impl("is_pinned", is_pinned)  # type: ignore[no-untyped-call]
    library.impl("_pin_memory", pin_memory)  # type: ignore[no-untyped-call]
    _libraries.append(library)
