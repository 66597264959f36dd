"""Host aliases with a common storage, for kernels that write to one of two overlapping tensors.

A host kernel refuses `x[1:].add_(x[:-1])`, as CUDA's does: both tensors have the same storage, and
their elements overlap. Aliases made by `relabel` have a storage each, so the kernel would not see
that. `SharedStorageAliases` makes the aliases of one operator's tensors over one host storage for
each storage of the device; `shares_storage_with_another` says whether an operator needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from simgpu._memory.ownership import with_bits_of
from simgpu._native.dlpack_relabel import LABELS, host_alias, relabel
from simgpu._runtime import executors
from simgpu._runtime.host_operators import empty, set_storage
from simgpu._runtime.launch import HOST_KEYS

Tensor = torch.Tensor
_CPU = torch.device("cpu")

# Whether two tensors stand on one storage.
on_one_storage: Callable[[Tensor, Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]


def host_empty(count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """`count` elements of the host, whatever modes and default devices the user has set."""
    return empty(HOST_KEYS, (count,), dtype=dtype, device=_CPU)


def bytes_of(storage: torch.UntypedStorage, nbytes: int, index: int) -> Tensor:
    """The first `nbytes` bytes of `storage`, of device `index`, as a host tensor."""
    tensor = relabel(host_empty(0), LABELS[index])
    set_storage(HOST_KEYS, tensor, storage, 0, (nbytes,), (1,))
    return host_alias(tensor)


def shares_storage_with_another(target: Tensor, values: Iterable[Any]) -> bool:
    """Whether a tensor among `values`, apart from `target` once, stands on its storage."""
    met = False
    for value in values:
        if value is target:
            if met:
                return True
            met = True
        elif isinstance(value, Tensor):
            if on_one_storage(target, value):
                return True
        elif isinstance(value, (tuple, list)) and shares_storage_with_another(
            target, (target, *value)
        ):
            return True
    return False


class SharedStorageAliases:
    """Makes the host aliases of one operator's tensors, or copies of them that can grow."""

    def __init__(self, copy: bool = False) -> None:
        if copy:
            executors.finish()
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._aliases: dict[int, Tensor] = {}
        self._copy = copy

    def __call__(self, tensor: Tensor) -> Tensor:
        """The alias of `tensor`; of the same tensor the same, by which kernels know `x += x`."""
        known = self._aliases.get(id(tensor))
        if known is None:
            known = self._aliases[id(tensor)] = self._made(tensor)
        return known

    def _made(self, tensor: Tensor) -> Tensor:
        if tensor.is_cpu or not tensor.numel():
            return host_alias(tensor).clone() if self._copy else host_alias(tensor)
        storage, offset = tensor.untyped_storage(), tensor.storage_offset()
        nbytes = storage.nbytes()
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        if (offset + last + 1) * tensor.itemsize > nbytes:  # a storage that has shrunk since
            return host_alias(tensor)
        shared = self._storages.get(storage._cdata)
        if shared is None:
            stored = bytes_of(storage, nbytes, tensor.get_device())
            shared = (stored.clone() if self._copy else stored).untyped_storage()
            self._storages[storage._cdata] = shared
        alias = host_empty(0, tensor.dtype)
        set_storage(HOST_KEYS, alias, shared, offset, tensor.shape, tensor.stride())
        return with_bits_of(tensor, alias)
