"""The table of kernels of the `c10d::` operators, and those of sends, receives and barriers.

Each takes the operator's arguments, makes host aliases of the tensors, says in a `Call` what is
asked of the group, and passes `issue`, where instruments see it as they see every launch. What NCCL
refuses is refused here. Those that reduce are in `reducing`, those that move data in `moving`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from simgpu._distributed import moving, placement, reducing, sparse
from simgpu._distributed.backends import backend_of
from simgpu._distributed.calls import Call, described
from simgpu._distributed.communicators import Communicator, find, threads
from simgpu._distributed.inference import plainly
from simgpu._distributed.issue import in_one_work, issue
from simgpu._distributed.rules import host_aliases, layout
from simgpu._native.dlpack_relabel import host_alias
from simgpu._runtime import executors

Tensor = torch.Tensor
Tensors = list[Tensor]


def send(tensors: Tensors, pg: Any, target: int, tag: int) -> Any:
    group = find(pg)
    [host] = host_aliases(tensors, group, between_two=True)
    says = _between_two(host) + layout(tensors, between_two=True)
    call = Call("send", says, [host], [], peer=target, tag=_looked_at(tag, group))
    return issue("send", group, [call], tensors, True, [])


def _between_two(host: Tensor) -> str:
    """What sender and receiver have to agree on: NCCL counts elements, whatever their shape."""
    return f"send and recv of {described([host.flatten()])}"


def _looked_at(tag: int, group: Communicator) -> int:
    """What the backend makes of a tag: NCCL pairs sends and receives in their order alone."""
    if group.kind == "nccl":
        return 0
    if tag < 0:
        raise RuntimeError(f"Tag must be nonnegative, got tag={tag}")
    return tag


def recv_(tensors: Tensors, pg: Any, source: int, tag: int) -> Any:
    group = find(pg)
    [host] = host_aliases(tensors, group, between_two=True)
    says = _between_two(host) + layout(tensors, between_two=True)
    call = Call("recv", says, [], [host], peer=source, tag=_looked_at(tag, group))
    return issue("recv_", group, [call], tensors, True, tensors)


def recv_any_source_(tensors: Tensors, pg: Any, tag: int) -> Any:
    raise RuntimeError(f"Backend {find(pg).kind} does not support recvAnysource")


def barrier(
    tensor: Tensor, pg: Any, device_ids: Sequence[int], async_op: bool = True, timeout: int = -1
) -> Any:
    group = find(pg)
    index = placement.of_barrier(group, device_ids)
    call = Call("barrier", "barrier", [], [])
    return issue("barrier", group, [call], [tensor], async_op, [], index)


def monitored_barrier_(
    tensor: Tensor, pg: Any, device_ids: Sequence[int], timeout: int, wait_all_ranks: bool
) -> None:
    if threads.carrier is not None:  # no time passes, and who does not come is an error at once
        group = find(pg)
        index = placement.of_barrier(group, device_ids)
        call = Call("barrier", "monitored_barrier", [], [])
        issue("monitored_barrier_", group, [call], [tensor], False, [], index)
        return
    limit = timedelta(milliseconds=timeout) if timeout > 0 else None
    backend_of(distributed.ProcessGroup.unbox(pg)).monitored_barrier(limit, wait_all_ranks)


def check_for_nan(tensor: Tensor) -> None:
    executors.finish()
    if host_alias(tensor).isnan().any():
        raise RuntimeError("NaN found in the input of a collective")


def start_coalescing(pg: Any, device: Any) -> None:
    """Collect the calls of a group from now on."""
    find(pg).coalesced = []


def end_coalescing(pg: Any, device: Any) -> Any:
    """One Work for all calls since `start_coalescing`."""
    group = find(pg)
    pending, group.coalesced = group.coalesced or [], None
    return distributed.Work.unbox(in_one_work(group, pending, []))


KERNELS = (
    reducing.allreduce_,
    reducing.allreduce_coalesced_,
    moving.broadcast_,
    reducing.reduce_,
    moving.allgather_,
    moving._allgather_base_,
    moving.allgather_into_tensor_coalesced_,
    moving.allgather_coalesced_,
    reducing.reduce_scatter_,
    reducing._reduce_scatter_base_,
    reducing.reduce_scatter_tensor_coalesced_,
    moving.alltoall_base_,
    moving.alltoall_,
    moving.gather_,
    moving.scatter_,
    send,
    recv_,
    recv_any_source_,
    barrier,
    monitored_barrier_,
    check_for_nan,
)


def register(key: str = "PrivateUse1") -> torch.library.Library:
    """Register all kernels under a dispatch key, for as long as the returned library lives."""
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own kernels look for a backend written in C++
        for kernel in KERNELS:
            if torch._C._jit_get_schemas_for_operator(f"c10d::{kernel.__name__}"):
                library.impl(kernel.__name__, plainly(kernel), key, allow_override=True)  # type: ignore[no-untyped-call]
        library.impl("allreduce_", plainly(sparse.sparse_allreduce), f"Sparse{key}")  # type: ignore[no-untyped-call]
    return library
