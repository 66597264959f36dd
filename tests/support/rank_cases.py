"""What ranks run in tests: each collective compared with its definition, on exact numbers.

Functions of torch.distributed only, which hold on real GPUs too, and import no test tools. Every
rank can compute what all ranks bring along, so each one judges its own results.
"""

import functools
import operator
from datetime import timedelta

import torch
from torch import distributed as dist

from tests.support import collectives


def device():
    return torch.device("cuda", torch.cuda.current_device())


def brought(shape, dtype, seed):
    """What each rank brings: small whole numbers, whose sums and products are exact."""
    return [row[0] for row in collectives.brought(dist.get_world_size(), shape, dtype, seed)]


def expect(found, wanted):
    found = found.cpu()
    assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    assert torch.equal(found, wanted), f"{found.tolist()} and not {wanted.tolist()}"


def done(work):
    """Wait for what an asynchronous call returned."""
    if work is not None:
        work.wait()


def check(name, parts, root, async_op, reduction="SUM", **how):
    """Make a call of the table and compare what it writes with its definition."""
    work, outs = collectives.begin(name, parts, root, async_op=async_op, **how)
    done(work)
    kind = collectives.FLAT_CALLS.get(name, (name,))[0]
    wanted = collectives.wanted(kind, parts, dist.get_rank(), root, reduction)
    for found, each in zip(outs, wanted, strict=True):
        expect(found, each)


def call(name, shape, dtype, seed, async_op):
    """One function of the table, with every reduction that it may be given."""
    size = dist.get_world_size()
    parts, root = collectives.brought(size, shape, dtype, seed), seed % size
    if "reduce" not in name:
        check(name, parts, root, async_op)
        return
    for reduction in collectives.REDUCTIONS:
        how = {"reduction": reduction, "op": getattr(dist.ReduceOp, reduction)}
        check(name, parts, root, async_op, **how)


def other_lengths(shape, dtype, seed, async_op):
    """Functions that take tensors of other lengths for each pair of ranks."""
    parts = collectives.uneven(dist.get_world_size(), dtype, seed)
    check("all_gather", parts, 0, async_op)
    check("all_to_all", parts, 0, async_op)
    check("all_to_all_single", parts, 0, async_op, splits=True)


def mean(shape, dtype, seed, async_op):
    size = dist.get_world_size()
    factor = size if dtype.is_floating_point else 1  # an integer mean is cut towards zero
    sign = -1 if dtype.is_signed else 1
    parts = [part * factor * sign for part in brought(shape, dtype, seed)]
    mine = parts[dist.get_rank()].to(device())
    done(dist.all_reduce(mine, dist.ReduceOp.AVG, async_op=async_op))
    total = functools.reduce(operator.add, [part.double() for part in parts])
    if dtype.is_floating_point:
        # 1/n is rounded, and so is each product: an ulp for each rank and one for each addition.
        bound = total.abs() * torch.finfo(dtype).eps * 2 * size / size
        assert ((mine.cpu().double() - total / size).abs() <= bound).all()
    else:
        expect(mine, (total / size).trunc().to(dtype))


def neighbours(shape, dtype, seed, async_op):
    """Everyone sends to the next rank and receives from the one before, and once around."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = brought(shape, dtype, seed)
    if size == 1:
        return
    mine, other = parts[rank].to(device()), torch.empty(shape, dtype=dtype, device=device())
    after, before = (rank + 1) % size, (rank - 1) % size
    batch = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, other, before)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    expect(other, parts[before])
    if rank == 0:
        dist.send(mine, after)
        dist.recv(other, before)
    else:
        dist.recv(other, before)
        dist.send(other, after)
    expect(other, parts[0])


def coalesced(shape, dtype, seed, async_op):
    parts = [part.reshape(-1) for part in brought(shape, dtype, seed)]
    mine = parts[dist.get_rank()].to(device())
    sums = [mine.clone() for _ in range(3)]
    wholes = [torch.empty(len(parts) * len(mine), dtype=dtype, device=device()) for _ in range(2)]
    for outs, named, call, wanted in (
        (sums, {}, dist.all_reduce, functools.reduce(torch.add, parts)),
        (
            wholes,
            {"device": device()},
            lambda out: dist.all_gather_into_tensor(out, mine),
            torch.cat(parts),
        ),
    ):
        with dist._coalescing_manager(async_ops=async_op, **named) as manager:
            for out in outs:
                call(out)
        if async_op:
            manager.wait()
        for out in outs:
            expect(out, wanted)


def objects(shape, dtype, seed, async_op):
    rank, size = dist.get_rank(), dist.get_world_size()
    found = [None] * size
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": other} for other in range(size)]
    found = [rank]
    dist.broadcast_object_list(found, seed % size)
    assert found == [seed % size]
    found = [None]
    dist.scatter_object_list(found, list(range(size)) if rank == 0 else [None] * size)
    assert found == [rank]


def subgroups(shape, dtype, seed, async_op):
    rank, size = dist.get_rank(), dist.get_world_size()
    members = list(range(0, size, 2))
    group = dist.new_group(members)
    if rank in members:
        parts = brought(shape, dtype, seed)
        mine = parts[rank].to(device())
        done(dist.all_reduce(mine, group=group, async_op=async_op))
        expect(mine, functools.reduce(torch.add, [parts[member] for member in members]))
    dist.barrier(device_ids=[device().index])


CASES = {name: functools.partial(call, name) for name in collectives.NAMES} | {
    case.__name__: case for case in (other_lengths, mean, neighbours, coalesced, objects, subgroups)
}


def every_collective(rank, shape, dtype, seed):
    """All of them one after the other, waited for by the call itself and by the program."""
    for case in CASES.values():
        for async_op in (False, True):
            case(shape, dtype, seed, async_op)


def sparse_sum(rank, rows, width, seed, backed):
    """Sparse tensors of other indices on each rank, some of them twice; None where NCCL refuses."""
    size = dist.get_world_size()
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for _ in range(size):
        count = int(torch.randint(0, 4, (1,), generator=generator))
        indices = torch.randint(0, rows, (1, count), generator=generator)
        values = torch.randint(-3, 4, (count, width), generator=generator).float()
        parts.append(torch.sparse_coo_tensor(indices, values, (rows, width), check_invariants=True))
    mine = parts[rank].clone().to(device() if backed else "cpu")
    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    assert mine.is_coalesced()
    expect(mine.to_dense(), functools.reduce(torch.add, [part.to_dense() for part in parts]))
    expect(work.get_future().value()[0].to_dense(), mine.to_dense().cpu())


def parts_of_a_group(rank, first, second):
    """split_group: each part sums its own, by the rules of NCCL, in parts of parts too.

    Args:
        first, second: how the ranks are split, and the first of these parts; again and again, and
            by the next default group as well.
    """
    named = {"rank": rank, "world_size": dist.get_world_size()}
    named["store"] = dist.PrefixStore("again", vars(dist.distributed_c10d)["_get_default_store"]())
    text = ""
    for again in range(2):
        for _ in range(2):
            part, members = _part(None, first, rank)
            if rank in first[0]:
                within = [[members[position] for position in each] for each in second]
                _part(part, within, rank, second)
        try:  # a rank in no part asks the whole group
            whole = part if part in vars(dist.distributed_c10d)["_world"].pg_map else None
            dist.all_reduce(torch.ones(2, device=device()).int(), dist.ReduceOp.BOR, group=whole)
        except ValueError as error:
            text = str(error)
        if not again:
            dist.barrier()
            dist.destroy_process_group()
            dist.init_process_group("nccl", device_id=device(), **named)
    return text


def _part(whole, splits, rank, positions=None):
    """The part of a group that this rank is in, with its members."""
    part = dist.split_group(whole, positions or splits, timeout=timedelta(seconds=60))
    [members] = [each for each in splits if rank in each] or [[]]
    if members:
        for place in part._device_types:
            x = torch.full((2,), rank + 1.0, device=place)
            dist.all_reduce(x, group=part)
            assert x.tolist() == [sum(member + 1 for member in members)] * 2
        assert dist.get_process_group_ranks(part) == members
    return part, members


def new_groups(rank):
    """Sums of the ranks, counted from 1, in groups of two neighbours each; those it is in."""
    found = []
    for first in range(dist.get_world_size() - 1):
        group = dist.new_group([first, first + 1])
        if rank in (first, first + 1):
            x = torch.full((1,), rank + 1, device=device())
            dist.all_reduce(x, group=group)
            found.append(int(x.item()))
    return found


def late(rank):
    """Rank 1 does not come to a collective; what rank 0 is told of it."""
    store = vars(dist.distributed_c10d)["_get_default_store"]()
    if rank:
        store.get("told")
        return ""
    text = error_of(dist.all_reduce, torch.ones(3, device=device()))
    store.set("told", "")
    return text


def left(rank, leaver, calls):
    """A rank leaves the group after some calls, and ends; what the others are told of it."""
    for size in range(1, calls + 1):
        dist.all_reduce(torch.ones(size, device=device()))
    return "" if rank == leaver else error_of(dist.broadcast, torch.ones(3, device=device()), 0)


def aborted_by_backend(rank):
    """The error of a call of a group whose backend has aborted it."""
    group, x = dist.new_group(), torch.ones(2, device=device())
    dist.all_reduce(x, group=group)
    group._get_backend(device()).abort()
    return error_of(dist.all_reduce, x, group=group)


# What ranks may get wrong: what raises, on each rank, as the call differs from that of another one.


def error_of(function, *arguments, **named):
    """The text of the error that a rank got, or None."""
    try:
        function(*arguments, **named)
    except dist.DistBackendError as error:
        return f"{type(error).__name__}: {error}"
    except ValueError as error:  # PyTorch's logger does not know a group that has ended
        return str(error.__context__)
    return None


def ones(size, dtype=torch.float32):
    return torch.ones(size, dtype=dtype, device=device())


def broadcast_or(other):
    """Rank 0 makes another call than the others."""
    return lambda rank: dist.broadcast(ones(3), 0) if rank else other()


def other_order(rank):
    works = [dist.all_reduce(ones(size), async_op=True) for size in ((2, 5), (5, 2))[rank % 2]]
    try:
        works[0].wait()
    finally:
        error_of(works[1].wait)


def other_splits(rank):
    size = dist.get_world_size()
    halves = [8 // size] * size
    wrong = [halves[0] - 1, *halves[1:-1], halves[-1] + 1]
    dist.all_to_all_single(ones(8), ones(8), halves, wrong if rank else halves)


def within_backward(rank):
    linear = torch.nn.Linear(3, 2).to(device())
    model = torch.nn.parallel.DistributedDataParallel(linear, device_ids=[device().index])
    loss = model(ones((1, 3))).sum()
    loss.backward() if rank else dist.all_reduce(ones(7))


MISTAKES = {
    "shape": lambda rank: dist.all_reduce(ones(3 + rank)),
    "dtype": lambda rank: dist.all_reduce(ones(4, (torch.float32, torch.int32)[rank % 2])),
    "operator": broadcast_or(lambda: dist.all_reduce(ones(3))),
    "root": lambda rank: dist.broadcast(ones(3), rank % 2),
    "reduction": lambda rank: dist.all_reduce(
        ones(3), (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[rank % 2]
    ),
    "order": other_order,
    "splits": other_splits,
    "size received": lambda rank: dist.recv(ones(4), 0) if rank else dist.send(ones(3), 1),
    # The first tensors of both calls are the same.
    "number of tensors": lambda rank: dist.all_reduce_coalesced([ones(3)] * (1 + rank % 2)),
    "part": broadcast_or(
        lambda: dist.reduce_scatter_tensor(ones(3), ones(3 * dist.get_world_size()))
    ),
    "barrier": broadcast_or(lambda: dist.barrier(device_ids=[device().index])),
    "backward": within_backward,
}


def every_mistake(rank):
    """The error of this rank for each mistake; after each of them, the group still works."""
    found = {}
    for name, mistake in MISTAKES.items():
        found[name] = error_of(mistake, rank)
        x = torch.ones(2, device=device())
        dist.all_reduce(x)
        assert x.tolist() == [dist.get_world_size()] * 2, name
    return found
