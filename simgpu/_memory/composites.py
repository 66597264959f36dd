"""Take a sparse or nested tensor apart into its dense tensors, and put it together again."""

from __future__ import annotations

from collections.abc import Callable

import torch

from simgpu._native.dlpack_relabel import host_alias
from simgpu._runtime import world

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
