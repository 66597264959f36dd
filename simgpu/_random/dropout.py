"""The mask of dropout, by the kernels of ATen/native/cuda/Dropout.cu.

Where the tensor is dense, a thread loads up to 16 bytes at once: 2, 4 or 8 elements that lie side
by side, as many as its address and size allow. Each call of a thread then draws four words, or
eight for 8 elements; with 2 elements, the other two words are thrown away. Otherwise elements are
spread over threads as in all other draws, in the order of their indices. The generator moves on by
what the last kernel would need, so small masks of 8 elements a thread share words with the next.
"""

from __future__ import annotations

import numpy as np
import torch

from simgpu._random import philox
from simgpu._random.ahead import MOST_THREADS
from simgpu._random.bernoulli import Toss, below, first_failure
from simgpu._random.fill import Source, draw
from simgpu._random.geometry import Launch, launch_of
from simgpu._random.layout import is_dense
from simgpu._random.philox import Array
from simgpu._random.stream import Stream

_UNROLL = 4
_LOAD = 16  # bytes

Tensor = torch.Tensor


def parameters(p: float, dtype: torch.dtype) -> tuple[float, float]:
    """How likely the kernel keeps an element, and what it multiplies it with: floats, as it has."""
    if dtype is torch.float64:
        return 1.0 - p, 1.0 / (1.0 - p)
    keep = np.float32(1.0 - p)
    return float(keep), float(np.float32(1.0 / float(keep)))


def elements_at_once(address: int, itemsize: int, numel: int) -> int:
    """How many elements of a dense tensor a thread takes at once."""
    several = _LOAD // itemsize
    while several > 1 and (address % (several * itemsize) or numel % several):
        several //= 2
    return several


def fill_mask(mask: Tensor, like: Tensor, keep: float, source: Source) -> None:
    """Write to `mask` which elements of `like` are kept, each with probability `keep`.

    Both are CPU tensors of one shape with at least one element; `mask` is of booleans and as dense
    as `like` is. `keep` is one of `parameters`.
    """
    numel = like.numel()
    launch = launch_of(numel, _UNROLL, source.resident)
    seed, place = source.stream.take(launch.increment)
    limit = first_failure(keep)
    dense = like.is_contiguous() or is_dense(like.shape, like.stride())
    at_once = elements_at_once(like.data_ptr(), like.itemsize, numel) if dense else 1
    if at_once > 1:
        row = mask if mask.dim() == 1 and mask.is_contiguous() else mask.as_strided((numel,), (1,))
        _fill_side_by_side(row.numpy(), seed, place, launch, at_once, limit, source.stream)
    elif mask.is_contiguous():
        draw(mask.numpy().reshape(-1), seed, place, launch, Toss(limit), source.stream)
    else:
        array = np.empty(numel, np.bool_)
        draw(array, seed, place, launch, Toss(limit), source.stream)
        mask.copy_(torch.from_numpy(array).view(mask.shape))


def _fill_side_by_side(
    mask: Array, seed: int, place: int, launch: Launch, at_once: int, limit: int, stream: Stream
) -> None:
    """The mask by threads that take `at_once` elements which lie side by side."""
    groups = mask.reshape(-1, at_once)
    if at_once == 4 and len(groups) <= min(MOST_THREADS, launch.threads):
        below(stream.ahead.drawn(seed, place, len(groups))[: len(groups)], limit, groups)
        return
    blocks = max(at_once // 4, 1)  # of words in each call
    for call in range(-(-len(groups) // launch.threads)):
        base = call * launch.threads
        used = min(launch.threads, len(groups) - base)
        for first in range(0, used, philox.CHUNK):
            count = min(philox.CHUNK, used - first)
            mine = groups[base + first : base + first + count]
            for block in range(blocks):
                words = philox.words_of_threads(
                    seed, place + call * blocks + block, first, count, min(at_once, 4)
                )
                for lane in range(min(at_once, 4)):
                    below(words[lane], limit, mine[:, 4 * block + lane])
