"""Which weights CUDA's fused kernels of attention keep in dropout.

Memory efficient attention numbers the weights in the order (batch, head, query, key); the n-th
takes the n-th word of one thread (mem_eff_attention/kernel_forward.h). Flash attention cuts the
weights of a head into tiles of 16 queries and 32 keys. A warp fills a tile, by 16 bytes of each of
its 32 threads, drawn by a Philox of seven rounds; which weight a byte is for is the layout of the
tensor cores' results (flash_attn/dropout.h and philox.cuh). What cuDNN draws is not public: its
kernel takes the words of efficient attention here.

Source: aten/src/ATen/native/transformers/cuda of PyTorch.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from simgpu._random import philox

Mask = npt.NDArray[np.bool_]

_ROUNDS = 7  # of flash attention
_LANES = 32
_ROWS, _COLUMNS = 16, 32  # of a tile
_PLACES = 2**32  # of which the function of many places computes one part at a time


def _words(seed: int, first: int, count: int) -> philox.Words32:
    """Words number `first` to `first + count - 1` of thread 0, where each place has four."""
    start, end = first // 4, (first + count + 3) // 4
    found = np.empty((end - start, 4), np.uint32)
    place = start
    while place < end:
        several = min(philox.CHUNK, end - place, _PLACES - place % _PLACES)
        drawn = philox.words_of_places(seed, place, 1, several, 1)
        for lane in range(4):
            found[place - start : place - start + several, lane] = drawn[lane].reshape(-1)
        place += several
    return found.reshape(-1)[first % 4 :][:count]


def efficient(seed: int, offset: int, p: float, *sizes: int) -> Mask:
    """The mask of memory efficient attention.

    Args:
        offset: of the generator, or of it and the number of the first weight.
        sizes: (batch, heads, queries, keys).
    """
    drawn = philox.unit_float(_words(seed, offset, math.prod(sizes)))
    kept: Mask = (drawn > np.float32(p)).reshape(sizes)
    return kept


def flash(seed: int, offset: int, p: float, *sizes: int, first: int = 0) -> Mask:
    """The mask of flash attention.

    Args:
        offset: of the generator.
        sizes: (batch, heads, queries, keys).
        first: the number of the first of the batch.
    """
    batch, heads, queries, keys = sizes
    rows, columns = -(-queries // _ROWS), -(-keys // _COLUMNS)
    most = int(float(np.float32(1) - np.float32(p)) * 255)  # of a byte that keeps its weight
    kept = np.empty((batch * heads, rows * _ROWS, columns * _COLUMNS), np.bool_)
    for number in range(batch * heads):
        counter = offset + (first * heads + number) * _LANES + np.arange(_LANES, dtype=np.uint64)
        drawn = _tiles(seed, counter, rows, columns) <= most
        kept[number] = drawn.transpose(2, 6, 0, 3, 4, 5, 1, 7).reshape(kept.shape[1:])
    return np.ascontiguousarray(kept[:, :queries, :keys]).reshape(sizes)


def _tiles(
    seed: int, counter: npt.NDArray[np.uint64], rows: int, columns: int
) -> npt.NDArray[np.uint8]:
    """The bytes of all tiles of a head.

    The dimensions: four queries by eight lanes (8), keys by four lanes (4), rows and columns of
    tiles, halves (2) and quarters (2) of a tile's keys, its halves of queries (2), neighbours (2).
    """
    shape = _LANES, rows, columns
    lanes = counter[:, None, None]
    c0, c1 = lanes & np.uint64(0xFFFF_FFFF), lanes >> np.uint64(32)
    c2 = np.arange(rows, dtype=np.uint64)[None, :, None]
    c3 = np.arange(columns, dtype=np.uint64)[None, None, :]
    found = np.stack(
        [np.broadcast_to(word, shape) for word in philox.rounds_of(seed, c0, c1, c2, c3, _ROUNDS)],
        -1,
    )
    return found.astype("<u4").view(np.uint8).reshape(8, 4, rows, columns, 2, 2, 2, 2)
