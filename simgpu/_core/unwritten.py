"""Fill memory that no kernel has written yet with NaN or -1, so that a read too early is seen.

On a GPU such memory holds whatever it held before, and a program may compute a right number from it
by chance. NaN goes through all that follows, and -1 is no index. Filled are results of queued work
before it runs, outputs of collectives before `wait()`, results of a graph before its first replay,
and memory that was given back.
"""

from __future__ import annotations

import functools

import torch

from simgpu._core.launch import HOST_KEYS
from simgpu._core.operators import empty, fill_, set_storage

_CPU = torch.device("cpu")
_BYTE = 255


@functools.cache
def unwritten_value(dtype: torch.dtype) -> float | bool:
    """The filler of a dtype: NaN, true, -1, or the largest of unsigned numbers."""
    if dtype is torch.bool:
        return True
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return -1 if dtype.is_signed else torch.iinfo(dtype).max


def fill_unwritten(memory: torch.Tensor | torch.UntypedStorage) -> None:
    """Fill a host tensor, or all bytes of a storage, with values that cannot pass for a result.

    Bytes between the elements of a tensor stay as they are: they may be those of another one.
    """
    if isinstance(memory, torch.Tensor):
        fill_(HOST_KEYS, memory, unwritten_value(memory.dtype))
        return
    row = empty(HOST_KEYS, (0,), dtype=torch.uint8, device=_CPU)
    set_storage(HOST_KEYS, row, memory, 0, (memory.nbytes(),), (1,))
    fill_(HOST_KEYS, row, _BYTE)
