"""`flip_bit`: one wrong bit in what a kernel wrote."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves


def flip_bit(outputs: Any, bit: int) -> bool:
    """Turn over a bit of the first host tensor with elements; False if there is none.

    Bits count through the elements in the order of their indices. ValueError for one past the last.
    """
    for tensor in tree_leaves(outputs):
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.numel():
            count = 8 * tensor.itemsize * tensor.numel()
            if bit >= count:
                raise ValueError(
                    f"flip names bit {bit}, and what was written has {count} bits, from 0 to "
                    f"{count - 1}: shape {tuple(tensor.shape)}, {tensor.dtype}"
                )
            with torch.inference_mode():
                _flip(tensor.detach(), bit)
            return True
    return False


def _flip(tensor: torch.Tensor, bit: int) -> None:
    element, within = divmod(bit, 8 * tensor.itemsize)
    place = tensor.storage_offset()
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        element, position = divmod(element, size)
        place += position * stride
    storage = tensor.untyped_storage()
    byte = place * tensor.itemsize + within // 8
    storage[byte] = int(storage[byte]) ^ (1 << within % 8)
