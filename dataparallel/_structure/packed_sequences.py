"""PackedSequence inputs and outputs: cut by sequence, not by row, and joined again.

A PackedSequence stores its sequences interleaved, time step by time step and longest first, so a
chunk of its rows is not a chunk of its batch. Here it is cut along the order in which the caller
gave the sequences. All other structures are the business of `trees`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import PackedSequence

from dataparallel._devices import CPU


def batch_size(packed: PackedSequence) -> int:
    """How many sequences there are."""
    return int(packed.batch_sizes[0])


def _lengths_in_given_order(packed: PackedSequence) -> list[int]:
    steps = packed.batch_sizes.tolist()
    lengths = [sum(1 for step in steps if step > position) for position in range(steps[0])]
    return [lengths[position] for position in _sorted_positions(packed)]


def _sorted_positions(packed: PackedSequence) -> list[int]:
    """For each sequence, in the order the caller gave them, its position from the longest on."""
    if packed.unsorted_indices is None:
        return list(range(batch_size(packed)))
    positions: list[int] = packed.unsorted_indices.tolist()
    return positions


def _starts(batch_sizes: Sequence[int]) -> list[int]:
    """The row at which each time step begins."""
    starts = [0]
    for size in batch_sizes:
        starts.append(starts[-1] + size)
    return starts


def _permutations(
    order: list[int], packed: bool, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """`order` and its inverse as index tensors; None twice for sequences packed as given."""
    if not packed:
        return None, None
    inverse = [0] * len(order)
    for position, index in enumerate(order):
        inverse[index] = position
    return torch.tensor(order, device=device), torch.tensor(inverse, device=device)


def split(
    packed: PackedSequence, sizes: Sequence[int], devices: Sequence[torch.device]
) -> list[PackedSequence]:
    """Chunks of `sizes` sequences each, on their devices; differentiable."""
    positions = _sorted_positions(packed)
    steps = packed.batch_sizes.tolist()
    starts = _starts(steps)
    chunks = []
    first = 0
    for size, device in zip(sizes, devices, strict=False):
        mine = positions[first : first + size]
        first += size
        order = sorted(range(size), key=mine.__getitem__)  # longest first
        ordered = [mine[index] for index in order]
        rows: list[int] = []
        batch_sizes: list[int] = []
        for start, step in zip(starts, steps, strict=False):
            alive = [position for position in ordered if position < step]
            if not alive:
                break
            rows.extend(start + position for position in alive)
            batch_sizes.append(len(alive))
        index = torch.tensor(rows, device=packed.data.device)
        data = packed.data.index_select(0, index).to(device, non_blocking=device != CPU)
        indices = _permutations(order, packed.sorted_indices is not None, device)
        chunks.append(PackedSequence(data, torch.tensor(batch_sizes, device=CPU), *indices))
    return chunks


def join(chunks: Sequence[PackedSequence], device: torch.device) -> PackedSequence:
    """One PackedSequence of all sequences in replica order, on `device`; differentiable."""
    lengths: list[int] = []
    owners: list[tuple[int, int]] = []  # of each sequence: its chunk, and its position there
    for number, chunk in enumerate(chunks):
        lengths.extend(_lengths_in_given_order(chunk))
        owners.extend((number, position) for position in _sorted_positions(chunk))
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    steps = [chunk.batch_sizes.tolist() for chunk in chunks]
    starts = [_starts(step) for step in steps]
    base = _starts([len(chunk.data) for chunk in chunks])
    rows: list[int] = []
    batch_sizes: list[int] = []
    for time in range(max(lengths)):
        alive = [index for index in order if lengths[index] > time]
        batch_sizes.append(len(alive))
        for index in alive:
            number, position = owners[index]
            rows.append(base[number] + starts[number][time] + position)
    data = torch.cat([chunk.data.to(device) for chunk in chunks])
    data = data.index_select(0, torch.tensor(rows, device=device))
    as_given = all(chunk.sorted_indices is None for chunk in chunks)
    shuffled = not as_given or order != list(range(len(order)))
    return PackedSequence(
        data, torch.tensor(batch_sizes, device=CPU), *_permutations(order, shuffled, device)
    )
