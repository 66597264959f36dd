"""Kernels of the c10d operators that only move data: broadcast, all_gather, all_to_all and others.

They say in a `Call` what is asked of the group; `kernels` has the table of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from simgpu._counting import plural
from simgpu._distributed.calls import Call, described
from simgpu._distributed.communicators import Communicator, find
from simgpu._distributed.issue import issue
from simgpu._distributed.rules import host_aliases, layout

Tensor = torch.Tensor
Tensors = list[Tensor]


def broadcast_(
    tensors: Tensors, pg: Any, root: int, root_tensor: int, async_op: bool = True, timeout: int = -1
) -> Any:
    group = find(pg)
    says = f"broadcast {described(tensors)} from {root}" + "".join(layout([t]) for t in tensors)
    calls = [
        Call("broadcast", says, [host], [] if group.rank == root else [host], peer=root)
        for host in host_aliases(tensors, group)
    ]
    return tensors, issue("broadcast_", group, calls, tensors, async_op, tensors)


def _all_gather_call(outs: Tensors, mine: Tensor, group: Communicator, like: Tensors) -> Call:
    """The call that gathers into host tensors; `like` has those of the program."""
    if len(outs) != group.size:
        raise ValueError(
            f"Tensor list operands to all_gather must have length equal to world size "
            f"{group.size}, got {len(outs)}"
        )
    here = outs[group.rank]
    if here.numel() != mine.numel() or here.dtype != mine.dtype:
        raise ValueError(
            f"all_gather puts {described([mine])} of rank {group.rank} into {described([here])}: "
            "numbers of elements and dtypes have to be equal"
        )
    shapes = {tuple(out.shape) for out in outs}
    says = f"all_gather {described(like[:1] if len(shapes) == 1 else like)}"
    return Call("all_gather", says, [mine], outs)


def allgather_(
    outs: list[Tensors], ins: Tensors, pg: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    group = find(pg)
    [mine], outputs = host_aliases(ins, group), host_aliases(outs[0], group)
    call = _all_gather_call(outputs, mine, group, outs[0])
    call.add(layout([*ins, *outs[0]]))
    return outs, issue("allgather_", group, [call], ins, async_op, list(outs[0]))


def _into_one(out: Tensor, mine: Tensor, group: Communicator) -> Call:
    [host_out, host] = host_aliases([out, mine], group)
    if host_out.dtype != host.dtype:
        raise TypeError("output tensor must have the same type as input tensor")
    if host_out.numel() != host.numel() * group.size:
        raise ValueError("output tensor size must be equal to world_size times input tensor size")
    parts = list(host_out.reshape(group.size, host.numel()).unbind())
    call = _all_gather_call(parts, host.reshape(-1), group, parts)
    call.says = call.shown = f"all_gather_into_tensor {described([mine])}{layout([out, mine])}"
    return call


def _allgather_base_(
    out: Tensor, mine: Tensor, pg: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    group = find(pg)
    call = _into_one(out, mine, group)
    return out, issue("_allgather_base_", group, [call], [out], async_op, [out])


def allgather_into_tensor_coalesced_(
    outs: Tensors, ins: Tensors, pg: Any, async_op: bool = True
) -> Any:
    group = find(pg)
    calls = [_into_one(out, mine, group) for out, mine in zip(outs, ins, strict=True)]
    name = "allgather_into_tensor_coalesced_"
    return issue(name, group, calls, outs, async_op, list(outs))


def allgather_coalesced_(
    out_lists: list[Tensors], ins: Tensors, pg: Any, async_op: bool = True
) -> Any:
    group = find(pg)
    # By rank first, then by input.
    calls = []
    for k, mine in enumerate(host_aliases(ins, group)):
        outs = [of_rank[k] for of_rank in out_lists]
        call = _all_gather_call(host_aliases(outs, group), mine, group, outs)
        call.add(layout([ins[k], *outs]))
        calls.append(call)
    outputs = [tensor for of_rank in out_lists for tensor in of_rank]
    return issue("allgather_coalesced_", group, calls, ins, async_op, outputs)


def _rows(tensor: Tensor, splits: Sequence[int], group: Communicator) -> Tensors:
    """The parts of a tensor for each rank: so many rows each, or equally many."""
    rows = tensor.shape[0] if tensor.dim() else tensor.numel()
    if not splits:
        if rows % group.size:
            raise ValueError("Tensor's dim 0 does not divide equally across group size")
        splits = [rows // group.size] * group.size
    if len(splits) != group.size:
        raise ValueError("Number of tensor splits not equal to group size")
    if sum(splits) != rows:
        raise ValueError("Split sizes doesn't match total dim 0 size")
    width = tensor.numel() // rows if rows else 0
    return list(torch.split(tensor.reshape(-1), [each * width for each in splits]))


def alltoall_base_(
    out: Tensor,
    mine: Tensor,
    pg: Any,
    out_splits: Sequence[int],
    in_splits: Sequence[int],
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    group = find(pg)
    [host_out, host] = host_aliases([out, mine], group)
    outs, ins = _rows(host_out, out_splits, group), _rows(host, in_splits, group)
    says = f"all_to_all_single {_dtype(host)}" + layout([out, mine])
    call = Call("all_to_all", says, ins, outs, has_splits=bool(out_splits or in_splits))
    return issue("alltoall_base_", group, [call], [out], async_op, [out])


def alltoall_(
    outs: Tensors, ins: Tensors, pg: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    group = find(pg)
    host_outs, host_ins = host_aliases(outs, group), host_aliases(ins, group)
    if len(host_outs) != group.size or len(host_ins) != group.size:
        raise ValueError(
            f"all_to_all needs {plural(group.size, 'tensor')} for input and output, one for each "
            f"rank, got {len(host_ins)} and {len(host_outs)}"
        )
    says = f"all_to_all {_dtype(host_ins[0])}" + layout([*outs, *ins])
    call = Call("all_to_all", says, host_ins, host_outs)
    return outs, issue("alltoall_", group, [call], outs, async_op, list(outs))


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def gather_(
    outs: list[Tensors],
    ins: Tensors,
    pg: Any,
    root: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    group = find(pg)
    [mine] = host_aliases(ins, group)
    outputs = list(outs[0]) if group.rank == root else []
    host_outs = host_aliases(outputs, group)
    says = f"gather {described(ins)} to {root}" + layout([*ins, *outputs])
    if group.rank == root:
        _check_list("gather", host_outs, mine, group)
    call = Call("gather", says, [mine], host_outs, peer=root)
    return issue("gather_", group, [call], ins, async_op, outputs)


def scatter_(
    outs: Tensors,
    ins: list[Tensors],
    pg: Any,
    root: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    group = find(pg)
    [out] = host_aliases(outs, group)
    parts = host_aliases(ins[0], group) if group.rank == root else []
    says = f"scatter {described(outs)} from {root}"
    says += layout([*outs, *ins[0]] if group.rank == root else outs)
    if group.rank == root:
        _check_list("scatter", parts, out, group)
    call = Call("scatter", says, parts, [out], peer=root)
    return outs, issue("scatter_", group, [call], outs, async_op, list(outs))


def _check_list(name: str, tensors: Tensors, like: Tensor, group: Communicator) -> None:
    """Raise unless the list of a root has a tensor like `like` for each rank."""
    if len(tensors) != group.size:
        raise ValueError(
            f"Incorrect {name} list size {len(tensors)}. List size should be {group.size}, same "
            "as size of the process group."
        )
    for tensor in tensors:
        if tensor.shape != like.shape or tensor.dtype != like.dtype:
            raise ValueError(
                f"{name} needs tensors of one shape and dtype, got {described([tensor, like])}"
            )
