"""Kernels of the c10d operators that reduce: all_reduce, reduce, reduce_scatter.

They say in a `Call` what is asked of the group; `kernels` has the table of all.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._distributed import rules
from simgpu._distributed.calls import Call, described
from simgpu._distributed.communicators import Communicator, find
from simgpu._distributed.issue import issue
from simgpu._distributed.reductions import Reduction
from simgpu._distributed.rules import host_aliases

Tensor = torch.Tensor
Tensors = list[Tensor]


def allreduce_(
    tensors: Tensors, pg: Any, op: Any, sparse: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    return tensors, allreduce_coalesced_(tensors, pg, op, async_op, timeout)


def allreduce_coalesced_(
    tensors: Tensors, pg: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    group, reduction = find(pg), Reduction.of(op)
    calls, kind = [], rules.kind_of(tensors, group)
    for tensor, host in zip(tensors, host_aliases(tensors, group), strict=True):
        rules.check_reduction(host.dtype, reduction, kind)
        says = f"all_reduce {described([tensor])} {reduction.name}{rules.layout([tensor])}"
        calls.append(Call("all_reduce", says, [host], [host], reduction=reduction))
    return issue("allreduce_", group, calls, tensors, async_op, tensors)


def reduce_(
    tensors: Tensors,
    pg: Any,
    op: Any,
    root: int,
    root_tensor: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    group, reduction = find(pg), Reduction.of(op)
    [host] = host_aliases(tensors, group)
    rules.check_reduction(host.dtype, reduction, rules.kind_of(tensors, group))
    says = f"reduce {described(tensors)} {reduction.name} to {root}{rules.layout(tensors)}"
    outs = [host] if group.rank == root else []
    call = Call("reduce", says, [host], outs, peer=root, reduction=reduction)
    return issue("reduce_", group, [call], tensors, async_op, tensors)


def _reduce_scatter_call(
    out: Tensor,
    parts: Tensors,
    op: Any,
    group: Communicator,
    name: str,
    kind: str,
    like: Tensors,
) -> Call:
    """The call that reduces host tensors; `like` has those of the program."""
    reduction = Reduction.of(op)
    if len(parts) != group.size:
        raise ValueError(
            f"Tensor list operands to reduce_scatter must have length equal to world size "
            f"{group.size}, got {len(parts)}"
        )
    if parts[group.rank].numel() != out.numel() or parts[group.rank].dtype != out.dtype:
        raise ValueError(
            f"reduce_scatter puts {described([parts[group.rank]])} into {described([out])}: "
            "numbers of elements and dtypes have to be equal"
        )
    rules.check_reduction(out.dtype, reduction, kind)
    shapes = {tuple(part.shape) for part in parts}
    shown = described(like[:1] if len(shapes) == 1 else like)
    return Call(
        "reduce_scatter", f"{name} {shown} {reduction.name}", parts, [out], reduction=reduction
    )


def reduce_scatter_(
    outs: Tensors,
    ins: list[Tensors],
    pg: Any,
    op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    group = find(pg)
    [out], parts = host_aliases(outs, group), host_aliases(ins[0], group)
    kind = rules.kind_of(outs, group)
    call = _reduce_scatter_call(out, parts, op, group, "reduce_scatter", kind, ins[0])
    call.add(rules.layout([*outs, *ins[0]]))
    return outs, issue("reduce_scatter_", group, [call], outs, async_op, list(outs))


def _scatter_one(out: Tensor, whole: Tensor, op: Any, group: Communicator) -> Call:
    [host_out, host] = host_aliases([out, whole], group)
    if host_out.dtype != host.dtype:
        raise TypeError("input tensor must be the same type as the output tensor.")
    if host.numel() != host_out.numel() * group.size:
        raise ValueError("input tensor must be the same size as output size times world size")
    parts = list(host.reshape(group.size, host_out.numel()).unbind())
    name, kind = "reduce_scatter_tensor", rules.kind_of([out], group)
    call = _reduce_scatter_call(host_out.reshape(-1), parts, op, group, name, kind, parts)
    call.add(rules.layout([out, whole]))
    return call


def _reduce_scatter_base_(
    out: Tensor, whole: Tensor, pg: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    group = find(pg)
    call = _scatter_one(out, whole, op, group)
    return out, issue("_reduce_scatter_base_", group, [call], [out], async_op, [out])


def reduce_scatter_tensor_coalesced_(
    outs: Tensors, ins: Tensors, pg: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    group = find(pg)
    calls = [_scatter_one(out, whole, op, group) for out, whole in zip(outs, ins, strict=True)]
    name = "reduce_scatter_tensor_coalesced_"
    return issue(name, group, calls, outs, async_op, list(outs))
