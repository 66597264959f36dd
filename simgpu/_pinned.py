"""Pinned host memory: a mark on a storage, since no simulated device needs pages to stay put.

`Tensor.pin_memory`, `Tensor.is_pinned` and with them `DataLoader(pin_memory=True)` ask C++ for
the accelerator's allocator of pinned memory, which a device type that lives in Python cannot have.
Here pinning copies into fresh host memory, as on CUDA, and marks the copy's storage; every view of
it is pinned, and nothing else is.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu import _world
from simgpu._launch import HOST_KEYS

# Under a key that has no kernel of its own stands the one that PyTorch has for any backend.
_STOCK_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.XLA)
_aten = torch.ops.aten
_empty_strided = _aten.empty_strided.default._handle.redispatch_boxed
_copy = _aten.copy_.default._handle.redispatch_boxed
_stock_pin = _aten._pin_memory.default._handle.redispatch_boxed
_stock_is_pinned = _aten.is_pinned.default._handle.redispatch_boxed

_MARK = "_simgpu_pinned"


def mark(storage: torch.UntypedStorage) -> None:
    """Call the host memory of `storage` pinned for as long as it lives."""
    # PyTorch keeps a storage's Python object, and this attribute, while the memory lives.
    setattr(storage, _MARK, True)


def mark_result(result: torch.Tensor) -> torch.Tensor:
    """Call the memory of a fresh host tensor pinned."""
    mark(result.untyped_storage())
    return result


def check_not_wanted(pin_memory: bool | None) -> None:
    """Raise where pinned memory was asked of a device."""
    if pin_memory:
        raise RuntimeError("Only dense CPU tensors can be pinned")


def is_pinned(self: torch.Tensor, device: torch.device | None = None) -> bool:
    """`Tensor.is_pinned` of a CPU tensor."""
    if _world.device_count():
        return getattr(self.untyped_storage(), _MARK, False)
    return bool(_stock_is_pinned(_STOCK_KEYS, self, device))


def pin_memory(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """`Tensor.pin_memory` of a CPU tensor that is not pinned: a pinned copy, strides kept."""
    if not _world.device_count():
        return _stock_pin(_STOCK_KEYS, self, device)  # type: ignore[no-any-return]
    options: dict[str, Any] = {"dtype": self.dtype, "device": torch.device("cpu")}
    pinned: torch.Tensor = _empty_strided(HOST_KEYS, self.shape, self.stride(), **options)
    _copy(HOST_KEYS, pinned, self)
    return mark_result(pinned)


_libraries: list[torch.library.Library] = []


def install() -> None:
    """Register pinning for CPU tensors; without simulated devices it stays PyTorch's own."""
    library = torch.library.Library("aten", "IMPL", "CPU")  # type: ignore[no-untyped-call]
    assert library.m is not None, "a library that was just made is open"
    library.m.impl("is_pinned", "CPU", is_pinned, False)
    library.m.impl("_pin_memory", "CPU", pin_memory, False)
    _libraries.append(library)
