"""all_reduce of sparse tensors, as gloo does it; NCCL refuses them.

Each rank gathers the indices and values of all, adds them in the order of the ranks, and has the
coalesced sum. Before, the ranks tell each other how many values they have, which may differ.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._distributed.calls import Call, described
from simgpu._distributed.communicators import Communicator, find
from simgpu._distributed.issue import in_one_work, issue
from simgpu._distributed.reductions import Reduction
from simgpu._distributed.rules import host_aliases

Tensor = torch.Tensor


def sparse_allreduce(
    tensors: list[Tensor], pg: Any, op: Any, sparse: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    group = find(pg)
    if group.kind == "nccl":
        raise RuntimeError(
            "NCCL does not support all_reduce with sparse tensors. Please use dense tensors "
            "instead."
        )
    if Reduction.of(op).name != "SUM":
        raise RuntimeError(
            "unsupported reduction operation (allreduce of sparse tensors only works with "
            "ReduceOp.SUM)"
        )
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(_sum(tensor, group))
    return tensors, in_one_work(group, [], tensors)


def _sum(tensor: Tensor, group: Communicator) -> Tensor:
    mine = tensor.coalesce()
    parts = [mine.indices().contiguous(), mine.values().contiguous()]
    indices, values = host_aliases(parts, group)
    says = f"all_reduce of sparse {described([tensor])} SUM"
    counts = [torch.empty(1, dtype=torch.int64, device="cpu") for _ in range(group.size)]
    _gather(torch.tensor([indices.shape[1]], device="cpu"), counts, says, group, tensor)
    sizes = [int(count) for count in counts]
    all_indices = [indices.new_empty((len(indices), size)) for size in sizes]
    all_values = [values.new_empty((size, *values.shape[1:])) for size in sizes]
    _gather(indices, all_indices, f"{says}, indices", group, tensor)
    _gather(values, all_values, f"{says}, values", group, tensor)
    total, *others = (
        torch.sparse_coo_tensor(i, v, tensor.shape, device="cpu", check_invariants=True)
        for i, v in zip(all_indices, all_values, strict=True)
    )
    for other in others:
        total = total + other
    return total.coalesce().to(tensor.device)


def _gather(mine: Tensor, outs: list[Tensor], says: str, group: Communicator, like: Tensor) -> None:
    """`mine` of each rank; the call is one of the device of `like`."""
    issue("allreduce_", group, [Call("all_gather", says, [mine], outs)], [like], False, [])
