"""`fill`: one kernel of random numbers, from the generator's stream to the elements of a tensor.

A `Kind` of numbers says how the words of a thread become numbers. `fill` does all the rest as
`distribution_nullary_kernel` does on CUDA: how many threads, which words they draw, which element
each number belongs to, and how far the generator moves on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from simgpu._random import philox
from simgpu._random.generator_state import Stream
from simgpu._random.layout import (
    INT32_MAX,
    Launch,
    in_memory_order,
    launch_of,
    launches,
    overlaps_itself,
)
from simgpu._random.philox import MOST_THREADS, Array, Words

_copy = torch.ops.aten.copy_.default._handle.redispatch_boxed
_view = torch.ops.aten.view.default._handle.redispatch_boxed
_MOST_DIMS = 32  # of an array, for every release of NumPy
_HOST_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# What NumPy calls the dtypes that numbers are written in directly.
_NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.bool: np.bool_,
}


@dataclass(slots=True, eq=False)
class Source:
    """Where a kernel's numbers come from: a stream, and how many threads its GPU holds at once."""

    stream: Stream
    resident: int


class Kind(Protocol):
    """How random words become numbers of one distribution."""

    unroll: int
    """Numbers that one call of a thread gives."""
    dtype: Any
    """The dtype in which NumPy computes the numbers."""

    def drawn(self, lanes: int) -> int:
        """How many of the four words the first `lanes` numbers need."""

    def convert(self, words: Words, outs: Sequence[Array]) -> None:
        """Write the first numbers of each thread: lane i into `outs[i]`, which may be shorter."""


def fill(tensor: torch.Tensor, source: Source, kind: Kind) -> None:
    """Fill a CPU tensor with numbers of `kind`, as a kernel on the GPU of `source` does."""
    numel = tensor.numel()
    if not numel:
        return
    if tensor.is_contiguous() and numel * tensor.itemsize <= INT32_MAX:
        launch = launch_of(numel, kind.unroll, source.resident)
        _fill_dense(tensor, launch, source, kind)
        return
    refuse_overlap(tensor)
    parts = launches(in_memory_order(tensor.shape, tensor.stride()), tensor.itemsize)
    if len(parts) > 1:  # the whole is reserved before it is found to be too large
        source.stream.take(launch_of(numel, kind.unroll, source.resident).increment)
    for part in parts:
        launch = launch_of(part.numel, kind.unroll, source.resident)
        # Its elements, in the order in which the kernel visits them.
        start = tensor.storage_offset() + part.start
        elements = tensor.as_strided(part.sizes[::-1], part.strides[::-1], start)
        _fill_dense(elements, launch, source, kind)


def refuse_overlap(tensor: torch.Tensor) -> None:
    """Raise what PyTorch raises where several elements of the tensor to fill are one."""
    if overlaps_itself(tensor.shape, tensor.stride()):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a "
            f"single memory location, for its shape is {tuple(tensor.shape)} and its strides are "
            f"{tensor.stride()}. Please clone() the tensor before performing the operation."
        )


def _fill_dense(tensor: torch.Tensor, launch: Launch, source: Source, kind: Kind) -> None:
    """Fill the elements of `tensor` in their order by one launch."""
    seed, place = source.stream.take(launch.increment)
    if _NUMPY.get(tensor.dtype) is kind.dtype and tensor.is_contiguous():
        row = tensor if tensor.dim() <= _MOST_DIMS else _view(_HOST_KEYS, tensor, (-1,))
        draw(row.numpy().reshape(-1), seed, place, launch, kind, source.stream)
        return
    array = np.empty(tensor.numel(), kind.dtype)
    draw(array, seed, place, launch, kind, source.stream)
    _copy(_HOST_KEYS, tensor, torch.from_numpy(array).view(tensor.shape))


def draw(
    array: Array, seed: int, place: int, launch: Launch, kind: Kind, stream: Stream | None = None
) -> None:
    """Fill `array` with what the threads of one launch draw, at `place` of the stream of `seed`.

    Small draws are looked up in what `stream` has computed ahead.
    """
    numel = len(array)
    if stream is not None and numel <= MOST_THREADS and numel <= launch.threads:
        table = stream.ahead.drawn(4, seed, place, numel)[:numel]
        kind.convert(Words(*table.T), (array,))
        return
    for call in range(launch.calls):
        base = call * launch.threads * kind.unroll
        used = min(launch.threads, numel - base)
        for first in range(0, used, philox.CHUNK):
            count = min(philox.CHUNK, used - first)
            starts = range(base + first, numel, launch.threads)[: kind.unroll]
            words = philox.words_of(seed, place + call, first, count, kind.drawn(len(starts)))
            kind.convert(words, [array[start : start + count] for start in starts])
