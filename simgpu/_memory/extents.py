"""How many bytes of its storage a tensor reaches, and the kernel of as_strided_, which checks it.

PyTorch forgets to look at this in `as_strided_`: a tensor whose last element lies 2^63 bytes away
or more passes its check of the storage, since the number wraps around. On the CPU such a tensor
ends the process when it is read; here it would when it crosses a device label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from simgpu._runtime.launch import HOST_KEYS

_MOST_BYTES = 2**63 - 1
_as_strided = torch.ops.aten.as_strided_.default._handle.redispatch_boxed


def bytes_needed(
    size: Sequence[int], stride: Sequence[int], storage_offset: int, itemsize: int
) -> int:
    """How many bytes a storage must have for a tensor; no stride means a contiguous one.

    Raises RuntimeError in PyTorch's words (aten/src/ATen/EmptyTensor.cpp, computeStorageNbytes)
    where no storage can have as many.
    """
    if not all(size):
        return 0
    if stride:
        last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    else:
        last = math.prod(size) - 1
    needed = (storage_offset + last + 1) * itemsize
    if needed > _MOST_BYTES:
        strides = f" and strides={list(stride)}" if stride else ""
        offset = f" from storage_offset={storage_offset}" if storage_offset else ""
        raise RuntimeError(
            f"Storage size calculation overflowed with sizes={list(size)}{strides}{offset}"
        )
    return needed


def as_strided_(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """`Tensor.as_strided_`; all but the overflow is checked by PyTorch."""
    if len(size) == len(stride) and min((0, *size, *stride)) == 0:
        offset = int(self.storage_offset()) if storage_offset is None else storage_offset
        bytes_needed(size, stride, offset, self.itemsize)
    return _as_strided(HOST_KEYS, self, size, stride, storage_offset)  # type: ignore[no-any-return]
