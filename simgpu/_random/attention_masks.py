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
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from simgpu._random import philox

Mask = npt.NDArray[np.bool_]

_ROUNDS = 7  # of flash attention
_LANES = 32
_ROWS, _COLUMNS = 16, 32  # of a tile
_PLACES = 2**32  # of which those within one multiple can be computed at once


def _spans(first: int, count: int, most: int) -> Iterator[tuple[int, slice]]:
    """Places whose words are computed at once: the first of them, and which of all these they are.

    At most so many, all with the same upper 32 bits.
    """
    done = 0
    while done < count:
        place = first + done
        end = done + min(most, count - done, _PLACES - place % _PLACES)
        yield place, slice(done, end)
        done = end


def _words(seed: int, first: int, count: int) -> philox.Words32:
    """Words number `first` to `first + count - 1` of thread 0, where each place has four."""
    start, end = first // 4, (first + count + 3) // 4
    found = np.empty((end - start, 4), np.uint32)
    for place, those in _spans(start, end - start, philox.CHUNK):
        drawn = philox.words_of(seed, place, 0, 1, places=those.stop - those.start)
        for lane, word in enumerate(drawn):
            found[those, lane] = word
    return found.reshape(-1)[first % 4 :][:count]


def efficient(seed: int, offset: int, p: float, *sizes: int) -> Mask:
    """Which weights memory efficient attention keeps when it drops each with probability `p`.

    Args:
        offset: that of the generator (`get_offset`), plus the number of the first weight.
        sizes: the shape of the mask, such as (batch, heads, queries, keys).
    """
    drawn = philox.unit_float(_words(seed, offset, math.prod(sizes)))
    kept: Mask = (drawn > np.float32(p)).reshape(sizes)
    return kept


def flash(seed: int, offset: int, p: float, *sizes: int, first: int = 0) -> Mask:
    """Which weights flash attention keeps when it drops each with probability `p`.

    Args:
        offset: that of the generator (`get_offset`).
        sizes: (batch, heads, queries, keys), the shape of the mask.
        first: which sequence of the whole batch is the first one here, from 0.
    """
    batch, heads, queries, keys = sizes
    rows, columns = -(-queries // _ROWS), -(-keys // _COLUMNS)
    most = int(float(np.float32(1) - np.float32(p)) * 255)  # of a byte that keeps its weight
    kept = np.empty((batch * heads, rows, 2, 8, columns, 2, 2, 4, 2), np.bool_)
    at_once = max(1, philox.CHUNK // (rows * _LANES))  # heads
    for number in range(0, batch * heads, at_once):
        some = kept[number : number + at_once]
        counter = offset + (first * heads + number) * _LANES
        for column in range(columns):
            drawn = _tiles(seed, counter, len(some), rows, column) <= most
            some[:, :, :, :, column] = drawn.transpose(0, 3, 6, 1, 4, 5, 2, 7)
    whole = kept.reshape(batch, heads, rows * _ROWS, columns * _COLUMNS)
    return np.ascontiguousarray(whole[:, :, :queries, :keys])


def _tiles(seed: int, counter: int, heads: int, rows: int, column: int) -> npt.NDArray[np.uint8]:
    """The bytes of all tiles of some heads in one column of tiles.

    The dimensions: heads, four queries by eight lanes (8), keys by four lanes (4), rows of tiles,
    halves (2) and quarters (2) of a tile's keys, its halves of queries (2), neighbours (2).
    """
    found = np.empty((heads * _LANES, rows, 4), "<u4")
    for place, those in _spans(counter, len(found), len(found)):
        several = those.stop - those.start
        drawn = philox.words_of(seed, place, column << 32, rows, places=several, rounds=_ROUNDS)
        for number, word in enumerate(drawn):
            found[those, :, number] = word.reshape(several, rows)
    return found.view(np.uint8).reshape(heads, 8, 4, rows, 2, 2, 2, 2)
