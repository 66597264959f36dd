"""The kernels of the `c10d::` operators, by which torch.distributed calls collectives.

Each takes the operator's arguments, makes host aliases of the tensors, says in a `Call` what is
asked of the group, and passes `issue`, where instruments see it as they see every launch. What NCCL
refuses is refused here. Kernels that reduce, that move data and that take sparse tensors have a
part each below.
"""

from __future__ import annotations

import functools
import itertools
import socket
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from simgpu._core import hooks, streams, world
from simgpu._core.hooks import Collective
from simgpu._core.launch import Kernel, launch
from simgpu._distributed import nccl, rules
from simgpu._distributed.collectives import Call, Reduction, described
from simgpu._distributed.ddp import called_by_autograd, current_step
from simgpu._distributed.groups import Communicator, backend_of, find
from simgpu._distributed.rules import host_aliases, layout
from simgpu._distributed.works import (
    Pending,
    Work,
    awaited,
    completed,
    finished,
    outside_inference_mode,
)
from simgpu._native.relabel import host_alias
from simgpu._util.frames import calling_line
from simgpu._util.naming import DEVICE_TYPE, plural, visible_text
from simgpu.errors import UnsupportedError

# On which device a call runs: that of its tensors; a barrier on the one that NCCL would take.
#
# NCCL has a communicator for each device that a rank uses in a group. A rank whose tensors are on
# another device than before waits there for ranks that are still in the old one.


def device_of_call(group: Communicator, tensors: Sequence[torch.Tensor]) -> int:
    """The device of an operator's tensors; the current one, where they are on the host.

    Raises RuntimeError (before PyTorch 2.15: DistBackendError) where the group has another one.
    """
    index = tensors[0].get_device() if tensors else -1
    if index < 0:
        return world.current_device()
    bound = group.bound_device
    if group.kind == "nccl" and bound is not None and index != bound:
        raise _bound_elsewhere(bound, index)
    group.used_devices.setdefault(index)
    return index


def _bound_elsewhere(bound: int, index: int) -> RuntimeError:
    """The error of a tensor on device `index` in a group of device `bound`."""
    if nccl.binds_to_one_device():
        named, other = (visible_text(f"{DEVICE_TYPE}:{each}") for each in (bound, index))
        return RuntimeError(
            f"ProcessGroupNCCL is bound to device {named} but an operation was issued on {other}: "
            "in this release of PyTorch a group has one device from the beginning, which is "
            "device_id of init_process_group, or else LOCAL_RANK or the rank. Make the tensor "
            f"there, or say device_id=torch.device({other!r})"
        )
    return distributed.DistBackendError(
        "Attempt to perform collective on tensor not on device passed to init_process_group: "
        f"the tensor is on device {index}, and device_id said {bound}. Call "
        f"torch.cuda.set_device({bound}), and make the tensor on that device"
    )


def of_barrier(group: Communicator, device_ids: Sequence[int]) -> int:
    """The device named, the group's own, the first one used, or one by the number of the rank."""
    if group.kind != "nccl":
        return world.current_device()
    if device_ids:
        return device_ids[0]
    if group.bound_device is not None:
        return group.bound_device
    for first in group.used_devices:
        return first
    return group.ranks[group.rank] % max(1, world.device_count())


# Hand calls to their group, through the one place that all device work passes (`launch`).

Tensor = torch.Tensor
_BETWEEN_TWO = ("send", "recv_")


@functools.cache
def _machine() -> str:
    return socket.gethostname()


@functools.cache
def _operator(name: str) -> torch._ops.OpOverload:
    found: torch._ops.OpOverload = getattr(torch.ops.c10d, name).default
    return found


def issue(
    name: str,
    group: Communicator,
    calls: Sequence[Call],
    tensors: Sequence[Tensor],
    async_op: bool,
    outputs: list[Tensor],
    index: int | None = None,
) -> Any:
    """Begin the calls of one operator, and return its Work, boxed for the dispatcher.

    Args:
        calls: what is asked of the group.
        tensors: some of the operator's tensors, which say on which device it runs.
        index: that device, if they do not.
        async_op: whether the caller waits by itself.
        outputs: what the Work's future holds.
    """
    for position, call in enumerate(calls, start=1):
        _check_peer(group, call)
        if name in _BETWEEN_TWO:
            call.shown = _shown_between_two(call, group)
        if len(calls) > 1:
            call.add(f" ({position} of {len(calls)})")
    # The Reducer asks for the future of each call at once, which waits: it need not be put off.
    asynchronous = (async_op and not called_by_autograd()) or group.coalesced is not None
    place, step = calling_line(), current_step()
    pending: list[Pending] = []

    def run(*_: Any) -> list[Tensor]:
        written = list(itertools.chain.from_iterable(call.outs for call in calls))
        for call in calls:
            call.place, call.device = f"{place} ({step})" if step else place, device
            pending.append(group.submit(call, asynchronous))
        return written

    on_host = index is None and all(tensor.is_cpu for tensor in tensors)
    index = device_of_call(group, tensors) if index is None else index
    _check_capture(name, index)
    here = world.current_world()
    many = here is not None and here.machine_count > 1
    own_device = group.kind == "nccl" and many and not on_host
    device = f"{_machine()}:{world.device(index).number}" if own_device else ""
    about = Collective(
        group=group.name,
        number=group.next_number(calls[0]) if calls else 0,
        ranks=tuple(group.ranks),
        algorithm=group.transport.algorithm(calls[0]) if calls else "",
        place=place,
        rank=group.ranks[group.rank],
        peer=group.ranks[calls[0].peer] if name in _BETWEEN_TWO and calls else None,
        tag=calls[0].tag if calls else 0,
        sends=name == "send",
        nbytes=sum(call.nbytes for call in calls),
        index=index,
    )
    for call in calls:
        call.collective = about
    # Its results are the program's tensors: no memory has to be taken for them.
    kernel = Kernel(_operator(name), run, changes_more=False)
    launch(kernel, index, (), {}, about=about)
    if not asynchronous:
        report = finished if async_op else awaited
        report([about])
    return in_one_work(group, pending if asynchronous else [], outputs)


def _shown_between_two(call: Call, group: Communicator) -> str:
    """What a send or a receive is, where `says` has what both have to agree on."""
    of = call.says.partition(" of ")[2]
    to = "to" if call.kind == "send" else "from"
    tag = f" with tag {call.tag}" if call.tag else ""
    return f"{call.kind} of {of} {to} rank {group.ranks[call.peer]}{tag}"


def _check_capture(name: str, index: int) -> None:
    """Raise within the capture of a graph: its replays would not ask the other ranks again."""
    if streams.captured and streams.current_stream(index).is_capturing():
        raise UnsupportedError(
            f"{name.strip('_')} cannot be captured into a graph on a simulated device: call it "
            "between two graphs, or train without graphs"
        )


def _check_peer(group: Communicator, call: Call) -> None:
    """Raise for a root, or another side of a send, that is no member of the group."""
    if not 0 <= call.peer < group.size:
        role = "rank" if call.kind in ("send", "recv") else "root rank"
        raise ValueError(
            f"{call.shown}: invalid {role}: {call.peer}, group {group.name!r} has "
            f"{plural(group.size, 'rank')}, from 0 on"
        )


def in_one_work(group: Communicator, pending: list[Pending], outputs: list[Tensor]) -> Any:
    """A Work for calls that are on their way; one that is done, if there are none."""
    if not pending:
        return completed(outputs).boxed()
    return Work(pending, outputs, group.open).boxed()


# Kernels of the c10d operators that only move data: broadcast, all_gather, all_to_all and others.
#
# They say in a `Call` what is asked of the group; the table of all is at the end.

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


# Kernels of the c10d operators that reduce: all_reduce, reduce, reduce_scatter.
#
# They say in a `Call` what is asked of the group; the table of all is at the end.


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


# all_reduce of sparse tensors, as gloo does it; NCCL refuses them.
#
# Each rank gathers the indices and values of all, adds them in the order of the ranks, and has the
# coalesced sum. Before, the ranks exchange how many values they have, which may differ.


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
    """What the backend makes of a tag: NCCL pairs sends and receives only by their order."""
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
    index = of_barrier(group, device_ids)
    call = Call("barrier", "barrier", [], [])
    return issue("barrier", group, [call], [tensor], async_op, [], index)


def monitored_barrier_(
    tensor: Tensor, pg: Any, device_ids: Sequence[int], timeout: int, wait_all_ranks: bool
) -> None:
    if world.this_rank() is not None:  # no time passes, and who does not come is an error at once
        group = find(pg)
        index = of_barrier(group, device_ids)
        call = Call("barrier", "monitored_barrier", [], [])
        issue("monitored_barrier_", group, [call], [tensor], False, [], index)
        return
    limit = timedelta(milliseconds=timeout) if timeout > 0 else None
    backend_of(distributed.ProcessGroup.unbox(pg)).monitored_barrier(limit, wait_all_ranks)


def check_for_nan(tensor: Tensor) -> None:
    hooks.finish_queued_work()
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
    allreduce_,
    allreduce_coalesced_,
    broadcast_,
    reduce_,
    allgather_,
    _allgather_base_,
    allgather_into_tensor_coalesced_,
    allgather_coalesced_,
    reduce_scatter_,
    _reduce_scatter_base_,
    reduce_scatter_tensor_coalesced_,
    alltoall_base_,
    alltoall_,
    gather_,
    scatter_,
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
                library.impl(
                    kernel.__name__, outside_inference_mode(kernel), key, allow_override=True
                )  # type: ignore[no-untyped-call]
        library.impl("allreduce_", outside_inference_mode(sparse_allreduce), f"Sparse{key}")  # type: ignore[no-untyped-call]
    return library
