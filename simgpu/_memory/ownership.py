"""`adopt`: a CPU tensor with fresh memory becomes a tensor of a device, and its bytes are counted.

The tensor is relabelled (`relabel`) and its bytes are entered in the device's ledger
(`simgpu._core.device`) until the memory dies. Where the device is full, OutOfMemoryError is
raised here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from simgpu._core import hooks, world
from simgpu._core.allocator_model import requested_by
from simgpu._core.device import Allocation, Device, live_objects
from simgpu._core.launch import HOST_KEYS
from simgpu._core.operators import empty, set_storage
from simgpu._core.out_of_memory import raise_out_of_memory
from simgpu._core.world import active_devices
from simgpu._native.relabel import LABELS, host_alias, relabel

# Take a sparse or nested tensor apart into its dense tensors, and put it together again.

Tensor = torch.Tensor
_aten = torch.ops.aten


def to_host(tensor: Tensor) -> Tensor:
    """The same tensor over the same memory, with parts on the CPU."""
    return rebuild(tensor, host_alias, None) if is_composite(tensor) else host_alias(tensor)


def rebuild(tensor: Tensor, move: Callable[[Tensor], Tensor], index: int | None) -> Tensor:
    """Put a tensor like `tensor` together of its parts, each moved by `move`."""
    if tensor.is_nested:
        sizes = (
            tensor._nested_tensor_size(),
            tensor._nested_tensor_strides(),
            tensor._nested_tensor_storage_offsets(),
        )
        if sizes[0].dim() < 2:  # without a row: PyTorch makes no view of nothing
            device = "cpu" if index is None else world.device(index).torch_device
            return torch.nested.nested_tensor([], dtype=tensor.dtype, device=device)
        return _aten._nested_view_from_buffer(move(tensor.values().detach()), *sizes)  # type: ignore[no-any-return]
    if tensor.layout == torch.sparse_coo:
        return make_on(
            index,
            lambda: torch.sparse_coo_tensor(
                move(tensor._indices()),
                move(tensor._values()),
                tensor.shape,
                is_coalesced=tensor.is_coalesced(),
                check_invariants=False,
            ),
        )
    by_row = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    compressed = tensor.crow_indices() if by_row else tensor.ccol_indices()
    plain = tensor.col_indices() if by_row else tensor.row_indices()
    return make_on(
        index,
        lambda: torch.sparse_compressed_tensor(
            move(compressed),
            move(plain),
            move(tensor.values()),
            tensor.shape,
            layout=tensor.layout,
            check_invariants=False,
        ),
    )


def make_on(index: int | None, make: Callable[[], Tensor]) -> Tensor:
    """Call `make` with device `index` current: where PyTorch asks for "simgpu" without an index.

    A tensor that has outlived its devices can still be taken apart; a kernel raises, if one runs.
    """
    if index is None:
        return make()
    before = world.current_device()
    world.set_unchecked_current_device(index)
    try:
        return make()
    finally:
        world.set_unchecked_current_device(before)


def is_composite(tensor: torch.Tensor) -> bool:
    """Whether a tensor is made of other tensors (sparse, nested) and has no memory of its own."""
    return tensor.layout is not torch.strided or tensor.is_nested


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


def check_memory(index: int, shape: Sequence[int], dtype: torch.dtype | None = None) -> None:
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


# Host aliases with a common storage, for kernels that write to one of two overlapping tensors.
#
# A host kernel refuses `x[1:].add_(x[:-1])`, as CUDA's does: both tensors have the same storage,
# and their elements overlap. Aliases made by `relabel` have a storage each, so the kernel would not
# see that. `SharedStorageAliases` makes the aliases of one operator's tensors over one host storage
# for each storage of the device; `shares_storage_with_another` says whether an operator needs it.

_CPU = torch.device("cpu")

# Whether two tensors share one storage.
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
    """Whether a tensor among `values`, apart from `target` once, uses its storage."""
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
            hooks.finish_queued_work()
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


def owned_tensors() -> Iterator[tuple[Device, Tensor, Allocation]]:
    """Each block of a device that is in use, and a tensor that has it; the newest ones first.

    Ends where all are found: beyond are the other objects of the program, which are many.
    """
    known: dict[int, Allocation] = {}
    live = _live_count()
    for tensor in live_objects(Tensor) if live else ():
        allocation = vars(tensor).get("_simgpu_allocation")
        if allocation is None or id(allocation) in known or not requested_by(allocation.token):
            continue
        owner = next((device for device in active_devices if device.owns(allocation)), None)
        if owner is None:
            continue
        known[id(allocation)] = allocation
        yield owner, tensor, allocation
        # Counted again at the end, since other threads may have allocated.
        if len(known) >= live and len(known) >= (live := _live_count()):
            return


def _live_count() -> int:
    return sum(device.placement().live_count for device in active_devices)
