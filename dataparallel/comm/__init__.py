"""Copies and sums of tensors over devices, with the signatures of `torch.nn.parallel.comm`.

Public. Arguments are checked here and tensors are moved by `_transfer`.

May import: `_transfer`, `_devices`, `torch`.
"""

from dataparallel.comm.broadcast_and_reduce import (
    broadcast,
    broadcast_coalesced,
    reduce_add,
    reduce_add_coalesced,
)
from dataparallel.comm.scatter_and_gather import gather, scatter

__all__ = [
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
]
