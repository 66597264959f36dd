"""The kernels of the `c10d::` operators, by which torch.distributed calls collectives.

`OPERATORS` has a function for each operator: it checks the tensors, as NCCL and gloo do, and makes
the `Call`s that they ask of the group, of host aliases. `_kernel` makes the kernel of it; all pass
`issue`, where instruments see a call as they see every launch.
"""

from __future__ import annotations

import functools
import itertools
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from simgpu._core import hooks, streams, world
from simgpu._core.hooks import Collective
from simgpu._core.launch import Kernel, launch
from simgpu._core.operators import tensors_in
from simgpu._distributed import nccl
from simgpu._distributed.agreement import IN_MEMORY, called_by_autograd, current_step
from simgpu._distributed.collectives import BITWISE, Call, Reduction, Tensor, described
from simgpu._distributed.groups import Communicator, backend_of, find
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
from simgpu.comm import FLOAT8, NCCL_DTYPES
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

Tensors = Sequence[Tensor]


_machine = functools.cache(socket.gethostname)


@functools.cache
def _operator(name: str) -> torch._ops.OpOverload:
    found: torch._ops.OpOverload = getattr(torch.ops.c10d, name).default
    return found


def issue(
    name: str,
    group: Communicator,
    calls: Sequence[Call],
    tensors: Tensors,
    async_op: bool,
    outputs: list[Tensor],
    index: int | None = None,
) -> Any:
    """Begin the calls of one operator, and return its Work, boxed for the dispatcher.

    Args:
        calls: what is asked of the group; one at least.
        tensors: the operator's, which say on which device it runs.
        index: that device, if they do not.
        async_op: whether the caller waits by itself.
        outputs: what the Work's future holds.
    """
    for position, call in enumerate(calls, start=1):
        _check_peer(group, call)
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
    many = here is not None and len(here.machine) > 1
    own_device = group.kind == "nccl" and many and not on_host
    device = f"{_machine()}:{world.device(index).number}" if own_device else ""
    first = calls[0]
    about = Collective(
        group=group.name,
        number=group.next_number(first),
        ranks=tuple(group.ranks),
        place=place,
        rank=group.ranks[group.rank],
        peer=group.ranks[first.peer] if first.is_between_two else None,
        tag=first.tag,
        sends=first.kind == "send",
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
        role = "rank" if call.is_between_two else "root rank"
        raise ValueError(
            f"{call.shown}: invalid {role}: {call.peer}, group {group.name!r} has "
            f"{plural(group.size, 'rank')}, from 0 on"
        )


def in_one_work(group: Communicator, pending: list[Pending], outputs: list[Tensor]) -> Any:
    """A Work for calls that are on their way; one that is done, if there are none."""
    if not pending:
        return completed(outputs).boxed()
    return Work(pending, outputs, group.open).boxed()


# What NCCL and gloo refuse, in the words of PyTorch's ProcessGroupNCCL and ProcessGroupGloo.
#
# NCCL sees memory, and no dims: tensors in `channels_last` travel in the order of memory, and so
# does what is sent to one rank from any tensor without gaps. Where the receiving tensor has another
# order, its values would be permuted without an error.

_CHANNELS_LAST = {
    4: (torch.channels_last, (0, 2, 3, 1)),
    5: (torch.channels_last_3d, (0, 2, 3, 4, 1)),
}
_PREMUL_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_GLOO_DTYPES = NCCL_DTYPES - set(FLOAT8)
_FNUZ = {torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
# As C++ calls them in the error.
_CPP_NAMES = {torch.int16: "Short", torch.uint16: "UInt16", torch.uint32: "UInt32"}


def host_aliases(
    tensors: Sequence[Tensor], group: Communicator, between_two: bool = False
) -> list[Tensor]:
    """The host aliases of tensors that may travel in a group; raises for those that may not."""
    on_host = all(tensor.is_cpu for tensor in tensors)
    if on_host and tensors and not group.takes_host:
        raise RuntimeError("No backend type associated with device type cpu")
    kind = "gloo" if on_host else group.kind
    for tensor in tensors:
        if tensor.is_cpu != on_host:
            raise ValueError("Tensors must be CUDA and dense")
        _check_dtype(tensor.dtype, kind, between_two)
    orders = [_order(tensor, between_two and kind == "nccl") for tensor in tensors]
    # Those of ranks that are processes never come here with tensors of the host.
    aliases = tensors if on_host else map(host_alias, tensors)
    return [
        alias if order is None else alias.permute(order)
        for alias, order in zip(aliases, orders, strict=True)
    ]


def layout(tensors: Sequence[Tensor], between_two: bool = False) -> str:
    """The memory format of a call's tensors, to be sent to other ranks; "" if contiguous.

    Raises:
        ValueError: their orders differ. Those of one dim have no layout, nor have empty ones.
    """
    orders = {
        _order(tensor, between_two): tensor
        for tensor in tensors
        if tensor.dim() != 1 and tensor.numel()
    }
    if len(orders) > 1:
        one, other, *_ = (
            f"{described([tensor])} with strides {tensor.stride()}" for tensor in orders.values()
        )
        raise ValueError(
            f"tensors of one call need the same order of dimensions in memory, and {one} differs "
            f"from {other}: values would be exchanged. Call .contiguous()"
        )
    order = next(iter(orders), None)
    if order is None:
        return ""
    memory_format, as_last = _CHANNELS_LAST.get(len(order), (None, ()))
    if order == as_last:
        return f"{IN_MEMORY}as {str(memory_format).removeprefix('torch.')}"
    return f"{IN_MEMORY}by dims {', '.join(map(str, order))}"


def _order(tensor: Tensor, between_two: bool) -> tuple[int, ...] | None:
    """The dims of a tensor as they are in memory, the outermost first; None: as they are.

    Those of a tensor between two ranks may be in any order, if there are no gaps.
    """
    if tensor.is_contiguous():
        return None
    memory_format, order = _CHANNELS_LAST.get(tensor.dim(), (None, ()))
    if memory_format is not None and tensor.is_contiguous(memory_format=memory_format):
        return order
    if not between_two:
        raise ValueError("Tensors must be contiguous")
    sizes, strides = tensor.shape, tensor.stride()
    order = tuple(
        sorted(
            range(tensor.dim()), key=lambda dim: (1, -strides[dim]) if sizes[dim] > 1 else (0, dim)
        )
    )
    if not tensor.permute(order).is_contiguous():
        raise ValueError("Tensors for P2P must be non-overlapping and dense")
    return order


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_dtype(dtype: torch.dtype, kind: str, between_two: bool) -> None:
    dtype = dtype.to_real() if dtype.is_complex else dtype
    if kind == "nccl" and dtype not in NCCL_DTYPES:
        name = _CPP_NAMES.get(dtype, _name_of(dtype))
        raise TypeError(f"Input tensor data type is not supported for NCCL process group: {name}")
    if kind == "gloo" and dtype not in _GLOO_DTYPES and not between_two:
        raise RuntimeError(
            f"Invalid scalar type: gloo has no {_name_of(dtype)} but for send and recv, it has "
            f"{', '.join(sorted(map(_name_of, _GLOO_DTYPES)))}"
        )


def check_reduction(dtype: torch.dtype, reduction: Reduction, backend: str) -> None:
    """Raise unless tensors of this dtype can be reduced so."""
    name, real = reduction.name, dtype.to_real() if dtype.is_complex else dtype
    if backend == "gloo" and name == "PREMUL_SUM":
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    if dtype.is_complex and name not in ("SUM", "AVG", "PREMUL_SUM"):
        raise ValueError(f"all_reduce does not support {name} on complex tensors")
    if name == "AVG" and backend == "gloo" and not real.is_floating_point:
        raise RuntimeError(
            f"result type Float can't be cast to the desired output type {dtype}: gloo divides "
            "floating-point numbers, sum the integers and divide afterwards"
        )
    if dtype is torch.bool and name == "AVG":
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
    if name in BITWISE and backend == "nccl":
        raise ValueError(f"Cannot use ReduceOp.{name} with NCCL")
    if name in BITWISE and real.is_floating_point:
        raise RuntimeError(f"Cannot use ReduceOp.{name} with non-integral dtype")
    if name == "PREMUL_SUM" and real not in _PREMUL_DTYPES:
        raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")
    if dtype in _FNUZ:
        raise RuntimeError("Unsupported Float8 type for NCCL reduction")


# The calls of each operator, of the group, the operator's tensors, and of what follows the group in
# its arguments. What a call says has to be the same on all ranks.

Calls = Iterator[Call]


def _reduction(op: Any, tensor: Tensor, group: Communicator) -> Reduction:
    """What a ReduceOp means; raises for a tensor that the group cannot reduce by it."""
    reduction = Reduction.of(op)
    check_reduction(tensor.dtype, reduction, "gloo" if tensor.is_cpu else group.kind)
    return reduction


def _all_reduce(group: Communicator, tensors: Tensors, op: Any, sparse: Any = None) -> Calls:
    for tensor, host in zip(tensors, host_aliases(tensors, group), strict=True):
        reduction = _reduction(op, tensor, group)
        says = f"all_reduce {described([tensor])} {reduction.name}{layout([tensor])}"
        yield Call("all_reduce", says, [host], [host], reduction=reduction)


def _reduce(group: Communicator, tensors: Tensors, op: Any, root: int, _: int) -> Calls:
    [host] = host_aliases(tensors, group)
    reduction = _reduction(op, tensors[0], group)
    says = f"reduce {described(tensors)} {reduction.name} to {root}{layout(tensors)}"
    outs = [host] if group.rank == root else []
    yield Call("reduce", says, [host], outs, peer=root, reduction=reduction)


def _broadcast(group: Communicator, tensors: Tensors, root: int, _: int) -> Calls:
    for tensor, host in zip(tensors, host_aliases(tensors, group), strict=True):
        says = f"broadcast {described([tensor])} from {root}{layout([tensor])}"
        yield Call("broadcast", says, [host], [] if group.rank == root else [host], peer=root)


def _all_gather(group: Communicator, outputs: Iterable[Tensors], ins: Tensors) -> Calls:
    for outs, mine in zip(outputs, ins, strict=True):
        [host, *host_outs] = host_aliases([mine, *outs], group)
        _check_parts("all_gather", group, outs)
        what = f"all_gather puts {described([mine])} of rank {group.rank}"
        _check_fit(mine, outs[group.rank], what)
        says = f"all_gather {_described_parts(outs)}{layout([mine, *outs])}"
        yield Call("all_gather", says, [host], host_outs)


def _all_gather_coalesced(group: Communicator, by_rank: Sequence[Tensors], ins: Tensors) -> Calls:
    return _all_gather(group, zip(*by_rank, strict=True), ins)


def _all_gather_into(group: Communicator, outs: Any, ins: Any) -> Calls:
    """Into a tensor, or into each of several that are coalesced."""
    for out, mine in zip(tensors_in(outs), tensors_in(ins), strict=True):
        [host_out, host] = host_aliases([out, mine], group)
        if out.dtype != mine.dtype:
            raise TypeError("output tensor must have the same type as input tensor")
        if out.numel() != mine.numel() * group.size:
            raise ValueError(
                "output tensor size must be equal to world_size times input tensor size"
            )
        says = f"all_gather_into_tensor {described([mine])}{layout([out, mine])}"
        parts = list(host_out.reshape(group.size, mine.numel()).unbind())
        yield Call("all_gather", says, [host.reshape(-1)], parts)


def _reduce_scatter(group: Communicator, outs: Tensors, ins: Sequence[Tensors], op: Any) -> Calls:
    [out], [parts] = outs, ins
    [host, *host_parts] = host_aliases([out, *parts], group)
    _check_parts("reduce_scatter", group, parts)
    here = parts[group.rank]
    _check_fit(here, out, f"reduce_scatter puts {described([here])}")
    reduction = _reduction(op, out, group)
    says = f"reduce_scatter {_described_parts(parts)} {reduction.name}{layout([out, *parts])}"
    yield Call("reduce_scatter", says, host_parts, [host], reduction=reduction)


def _reduce_scatter_into(group: Communicator, outs: Any, ins: Any, op: Any) -> Calls:
    """Of a tensor, or of each of several that are coalesced."""
    for out, whole in zip(tensors_in(outs), tensors_in(ins), strict=True):
        [host_out, host] = host_aliases([out, whole], group)
        if out.dtype != whole.dtype:
            raise TypeError("input tensor must be the same type as the output tensor.")
        if whole.numel() != out.numel() * group.size:
            raise ValueError("input tensor must be the same size as output size times world size")
        reduction = _reduction(op, out, group)
        parts = list(host.reshape(group.size, out.numel()).unbind())
        what = f"{described(parts[:1])} {reduction.name}{layout([out, whole])}"
        says, host_outs = f"reduce_scatter_tensor {what}", [host_out.reshape(-1)]
        yield Call("reduce_scatter", says, parts, host_outs, reduction=reduction)


def _check_parts(name: str, group: Communicator, parts: Tensors) -> None:
    if len(parts) != group.size:
        raise ValueError(
            f"Tensor list operands to {name} must have length equal to world size "
            f"{group.size}, got {len(parts)}"
        )


def _check_fit(source: Tensor, target: Tensor, what: str) -> None:
    if source.numel() != target.numel() or source.dtype != target.dtype:
        raise ValueError(
            f"{what} into {described([target])}: numbers of elements and dtypes have to be equal"
        )


def _described_parts(parts: Tensors) -> str:
    """What the tensors of all ranks are; once, if they have one shape."""
    return described(parts[:1] if len({part.shape for part in parts}) == 1 else parts)


def _all_to_all_single(
    group: Communicator, out: Tensor, mine: Tensor, *splits: Sequence[int]
) -> Calls:
    """`splits` has how many rows come from each rank, and how many go to each rank."""
    outs, ins = map(_rows, host_aliases([out, mine], group), splits, [group.size] * 2)
    says = f"all_to_all_single {_name_of(mine.dtype)}{layout([out, mine])}"
    yield Call("all_to_all", says, ins, outs, has_splits=any(splits))


def _rows(tensor: Tensor, splits: Sequence[int], size: int) -> list[Tensor]:
    """The parts of a tensor for each of `size` ranks: so many rows each, or equally many."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % size:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        splits = [rows // size] * size
    if len(splits) != size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    if sum(splits) != rows:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    width = tensor.numel() // rows if rows else 0
    return list(torch.split(tensor.reshape(-1), [each * width for each in splits]))


def _all_to_all(group: Communicator, outs: Tensors, ins: Tensors) -> Calls:
    host_outs, host_ins = host_aliases(outs, group), host_aliases(ins, group)
    if len(outs) != group.size or len(ins) != group.size:
        raise ValueError(
            f"all_to_all needs {plural(group.size, 'tensor')} for input and output, one for each "
            f"rank, got {len(ins)} and {len(outs)}"
        )
    says = f"all_to_all {_name_of(ins[0].dtype)}{layout([*outs, *ins])}"
    yield Call("all_to_all", says, host_ins, host_outs)


def _gather(group: Communicator, outs: list[Tensors], ins: Tensors, root: int) -> Calls:
    parts, hosts = _parts_of_root("gather", group, outs, ins, root)
    says = f"gather {described(ins)} to {root}{layout([*ins, *parts])}"
    yield Call("gather", says, hosts[:1], hosts[1:], peer=root)


def _scatter(group: Communicator, outs: Tensors, ins: list[Tensors], root: int) -> Calls:
    parts, hosts = _parts_of_root("scatter", group, ins, outs, root)
    says = f"scatter {described(outs)} from {root}{layout([*outs, *parts])}"
    yield Call("scatter", says, hosts[1:], hosts[:1], peer=root)


def _parts_of_root(
    name: str, group: Communicator, lists: list[Tensors], own: Tensors, root: int
) -> tuple[Tensors, list[Tensor]]:
    """What the root has for each rank, none on the others; host aliases of `own` and of these.

    Raises unless they are as many as there are ranks, and like `own`.
    """
    if group.rank != root:
        return [], host_aliases(own, group)
    [parts], [like] = lists, own
    hosts = host_aliases([like, *parts], group)
    if len(parts) != group.size:
        raise ValueError(
            f"Incorrect {name} list size {len(parts)}. List size should be {group.size}, same "
            "as size of the process group."
        )
    for part in parts:
        if part.shape != like.shape or part.dtype != like.dtype:
            raise ValueError(
                f"{name} needs tensors of one shape and dtype, got {described([part, like])}"
            )
    return parts, hosts


def _between_two(kind: str, group: Communicator, tensors: Tensors, peer: int, tag: int) -> Calls:
    [host] = host_aliases(tensors, group, between_two=True)
    # NCCL counts elements, whatever their shape.
    what = described([host.flatten()]) + layout(tensors, between_two=True)
    if group.kind == "nccl":
        tag = 0  # it pairs sends and receives only by their order
    if tag < 0:
        raise RuntimeError(f"Tag must be nonnegative, got tag={tag}")
    ins, outs = ([host], []) if kind == "send" else ([], [host])
    call = Call(kind, f"send and recv of {what}", ins, outs, peer=peer, tag=tag)
    _check_peer(group, call)
    to, with_tag = "to" if kind == "send" else "from", f" with tag {tag}" if tag else ""
    call.shown = f"{kind} of {what} {to} rank {group.ranks[peer]}{with_tag}"
    yield call


def _recv_any_source(group: Communicator, tensors: Tensors, tag: int) -> Calls:
    raise RuntimeError(f"Backend {group.kind} does not support recvAnysource")


OPERATORS: dict[str, Callable[..., Calls]] = {
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce,
    "broadcast_": _broadcast,
    "reduce_": _reduce,
    "allgather_": _all_gather,
    "_allgather_base_": _all_gather_into,
    "allgather_into_tensor_coalesced_": _all_gather_into,
    "allgather_coalesced_": _all_gather_coalesced,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_into,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_into,
    "alltoall_base_": _all_to_all_single,
    "alltoall_": _all_to_all,
    "gather_": _gather,
    "scatter_": _scatter,
    "send": functools.partial(_between_two, "send"),
    "recv_": functools.partial(_between_two, "recv"),
    "recv_any_source_": _recv_any_source,
}


def _kernel(name: str, schema: Any) -> Callable[..., Any]:
    """The kernel of an operator, by whose schema its tensors come first and then its group."""
    arguments = [argument.name for argument in schema.arguments]
    at = arguments.index("process_group")
    end = arguments.index("async_op") if "async_op" in arguments else len(arguments)
    calls_of = OPERATORS[name]
    shown = "allreduce_" if name == "allreduce_coalesced_" else name

    def kernel(*args: Any) -> Any:
        sides, group = args[:at], find(args[at])
        calls = list(calls_of(group, *sides, *args[at + 1 : end]))
        outputs = [] if name == "send" else list(tensors_in(sides[0]))
        async_op = args[end] if len(args) > end else True
        work = issue(shown, group, calls, list(tensors_in(*sides)), async_op, outputs)
        return work if len(schema.returns) == 1 else (sides[0], work)

    return kernel


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
    indices, values = host_aliases([mine.indices().contiguous(), mine.values().contiguous()], group)
    says = f"all_reduce of sparse {described([tensor])} SUM"

    def gather(part: Tensor, outs: list[Tensor], what: str = "") -> list[Tensor]:
        call = Call("all_gather", f"{says}{what}", [part], outs)
        issue("allreduce_", group, [call], [tensor], False, [])
        return outs

    counts = [torch.empty(1, dtype=torch.int64, device="cpu") for _ in range(group.size)]
    sizes = map(int, gather(torch.tensor([indices.shape[1]], device="cpu"), counts))
    shapes = [(size, *values.shape[1:]) for size in sizes]
    all_indices = [indices.new_empty((len(indices), size)) for size, *_ in shapes]
    gather(indices, all_indices, ", indices")
    all_values = gather(values, [values.new_empty(shape) for shape in shapes], ", values")
    total, *others = (
        torch.sparse_coo_tensor(i, v, tensor.shape, device="cpu", check_invariants=True)
        for i, v in zip(all_indices, all_values, strict=True)
    )
    for other in others:
        total = total + other
    return total.coalesce().to(tensor.device)


def barrier(
    tensor: Tensor, pg: Any, device_ids: Sequence[int], async_op: bool = True, timeout: int = -1
) -> Any:
    group = find(pg)
    call, index = Call("barrier", "barrier", [], []), of_barrier(group, device_ids)
    return issue("barrier", group, [call], [tensor], async_op, [], index)


def monitored_barrier_(
    tensor: Tensor, pg: Any, device_ids: Sequence[int], timeout: int, wait_all_ranks: bool
) -> None:
    if world.this_rank() is not None:  # no time passes, and who does not come is an error at once
        group = find(pg)
        call, index = Call("barrier", "monitored_barrier", [], []), of_barrier(group, device_ids)
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


def register(key: str = "PrivateUse1") -> Any:
    """Register all kernels under a dispatch key, for as long as the returned library lives."""
    library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    others = {each.__name__: each for each in (barrier, monitored_barrier_, check_for_nan)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own kernels look for a backend written in C++
        for name in (*OPERATORS, *others):
            for schema in torch._C._jit_get_schemas_for_operator(f"c10d::{name}"):
                kernel = others.get(name) or _kernel(name, schema)
                library.impl(name, outside_inference_mode(kernel), key, allow_override=True)
        library.impl("allreduce_", outside_inference_mode(sparse_allreduce), f"Sparse{key}")
    return library
