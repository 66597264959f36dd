"""What ranks run in tests: each collective compared with its definition, on exact numbers.

Functions of torch.distributed only, which hold on real GPUs too, and import no test tools. Every
rank can compute what all ranks bring along, so each one judges its own results.
"""

import functools
import operator
from datetime import timedelta

import torch
from torch import distributed as dist

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
)


def device():
    return torch.device("cuda", torch.cuda.current_device())


def brought(shape, dtype, seed, count=None):
    """What each rank brings: small whole numbers, whose sums and products are exact."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(1, 4, shape, generator=generator).to(dtype)
        for _ in range(count or dist.get_world_size())
    ]


def expect(found, wanted):
    found = found.cpu()
    assert found.dtype == wanted.dtype, (found.dtype, wanted.dtype)
    assert torch.equal(found, wanted), f"{found.tolist()} and not {wanted.tolist()}"


def done(work):
    """Wait for what an asynchronous call returned."""
    if work is not None:
        work.wait()


REDUCTIONS = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


def all_reduce(shape, dtype, seed, async_op):
    parts = brought(shape, dtype, seed)
    for name, function in REDUCTIONS.items():
        mine = parts[dist.get_rank()].to(device())
        done(dist.all_reduce(mine, getattr(dist.ReduceOp, name), async_op=async_op))
        expect(mine, functools.reduce(function, parts))


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


def broadcast(shape, dtype, seed, async_op):
    parts = brought(shape, dtype, seed)
    root = seed % dist.get_world_size()
    mine = parts[dist.get_rank()].to(device())
    done(dist.broadcast(mine, root, async_op=async_op))
    expect(mine, parts[root])


def reduce(shape, dtype, seed, async_op):
    parts = brought(shape, dtype, seed)
    root = seed % dist.get_world_size()
    mine = parts[dist.get_rank()].to(device())
    done(dist.reduce(mine, root, async_op=async_op))
    if dist.get_rank() == root:
        expect(mine, functools.reduce(torch.add, parts))


def all_gather(shape, dtype, seed, async_op):
    parts = brought(shape, dtype, seed)
    mine = parts[dist.get_rank()].to(device())
    outs = [torch.empty_like(mine) for _ in parts]
    done(dist.all_gather(outs, mine, async_op=async_op))
    expect(torch.stack(outs), torch.stack(parts))
    out = torch.empty((len(parts) * mine.numel(),), dtype=dtype, device=device())
    done(dist.all_gather_into_tensor(out, mine.reshape(-1), async_op=async_op))
    expect(out, torch.cat([part.reshape(-1) for part in parts]))


def all_gather_uneven(shape, dtype, seed, async_op):
    parts = [torch.full((rank + 1,), rank, dtype=dtype) for rank in range(dist.get_world_size())]
    outs = [torch.empty_like(part, device=device()) for part in parts]
    done(dist.all_gather(outs, parts[dist.get_rank()].to(device()), async_op=async_op))
    expect(torch.cat(outs), torch.cat(parts))


def reduce_scatter(shape, dtype, seed, async_op):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = brought((size, *shape), dtype, seed)
    wanted = functools.reduce(torch.add, parts)[rank]
    out = torch.empty(shape, dtype=dtype, device=device())
    done(dist.reduce_scatter(out, list(parts[rank].to(device()).unbind()), async_op=async_op))
    expect(out, wanted)
    whole = parts[rank].to(device())
    done(dist.reduce_scatter_tensor(out.view(-1), whole.view(-1), async_op=async_op))
    expect(out, wanted)


def all_to_all(shape, dtype, seed, async_op):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = brought((size, *shape), dtype, seed)
    outs = [torch.empty(shape, dtype=dtype, device=device()) for _ in range(size)]
    done(dist.all_to_all(outs, list(parts[rank].to(device()).unbind()), async_op=async_op))
    expect(torch.stack(outs), torch.stack([part[rank] for part in parts]))
    flat = torch.empty((size, *shape), dtype=dtype, device=device())
    done(dist.all_to_all_single(flat, parts[rank].to(device()), async_op=async_op))
    expect(flat, torch.stack([part[rank] for part in parts]))


def all_to_all_with_splits(shape, dtype, seed, async_op):
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = torch.randint(0, 3, (size, size), generator=torch.Generator().manual_seed(seed))
    sent = torch.cat([torch.full((int(n),), 10 * rank + to) for to, n in enumerate(rows[rank])])
    out = torch.empty(int(rows[:, rank].sum()), dtype=torch.int64, device=device())
    splits = rows[:, rank].tolist(), rows[rank].tolist()
    done(dist.all_to_all_single(out, sent.to(device()), *splits, async_op=async_op))
    wanted = [torch.full((int(n),), 10 * by + rank) for by, n in enumerate(rows[:, rank])]
    expect(out, torch.cat(wanted))


def gather_and_scatter(shape, dtype, seed, async_op):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts, root = brought(shape, dtype, seed), seed % size
    mine = parts[rank].to(device())
    outs = [torch.empty_like(mine) for _ in parts] if rank == root else None
    done(dist.gather(mine, outs, root, async_op=async_op))
    if outs is not None:
        expect(torch.stack(outs), torch.stack(parts))
    back = torch.empty_like(mine)
    done(dist.scatter(back, outs, root, async_op=async_op))
    expect(back, parts[rank])


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
    size = dist.get_world_size()
    mine = brought(shape, dtype, seed)[dist.get_rank()].to(device())
    with dist._coalescing_manager(async_ops=async_op) as manager:
        sums = [mine.clone() for _ in range(3)]
        for each in sums:
            dist.all_reduce(each)
    if async_op:
        manager.wait()
    wanted = functools.reduce(torch.add, brought(shape, dtype, seed))
    for each in sums:
        expect(each, wanted)
    with dist._coalescing_manager(device=device(), async_ops=async_op) as manager:
        outs = [torch.empty((size, mine.numel()), dtype=dtype, device=device()) for _ in range(2)]
        for out in outs:
            dist.all_gather_into_tensor(out.view(-1), mine.view(-1))
    if async_op:
        manager.wait()
    wanted = torch.stack([part.reshape(-1) for part in brought(shape, dtype, seed)])
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


CASES = (
    all_reduce,
    mean,
    broadcast,
    reduce,
    all_gather,
    all_gather_uneven,
    reduce_scatter,
    all_to_all,
    all_to_all_with_splits,
    gather_and_scatter,
    neighbours,
    coalesced,
    objects,
    subgroups,
)


def every_collective(rank, shape, dtype, seed):
    """All of them one after the other, waited for by the call itself and by the program."""
    for case in CASES:
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
        x = torch.full((2,), rank + 1.0, device=device())
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


def ended(rank):
    """A group that was aborted, and one that was destroyed, say so; the default group goes on."""
    found = []
    for end in (
        vars(dist.distributed_c10d)["_abort_process_group"],
        dist.destroy_process_group,
        lambda group: group._get_backend(device()).abort(),
    ):
        group = dist.new_group()
        x = torch.ones(2, device=device())
        dist.all_reduce(x, group=group)
        end(group)
        found.append(error_of(dist.all_reduce, x, group=group))
    x = torch.ones(2, device=device())
    dist.all_reduce(x)
    assert x.tolist() == [dist.get_world_size()] * 2
    return found


# What ranks may get wrong. Each returns the text of the error that the rank got.


def error_of(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except dist.DistBackendError as error:
        return f"{type(error).__name__}: {error}"
    except ValueError as error:  # PyTorch's logger does not know a group that has ended
        return str(error.__context__)
    return None


def other_shape(rank):
    return error_of(dist.all_reduce, torch.ones(3 + rank, device=device()))


def other_dtype(rank):
    dtype = (torch.float32, torch.int32)[rank % 2]
    return error_of(dist.all_reduce, torch.ones(4, dtype=dtype, device=device()))


def other_operator(rank):
    x = torch.ones(3, device=device())
    return error_of(dist.broadcast, x, 0) if rank else error_of(dist.all_reduce, x)


def other_root(rank):
    return error_of(dist.broadcast, torch.ones(3, device=device()), rank % 2)


def other_reduction(rank):
    op = (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[rank % 2]
    return error_of(dist.all_reduce, torch.ones(3, device=device()), op)


def other_order(rank):
    small, large = torch.ones(2, device=device()), torch.ones(5, device=device())
    works = [dist.all_reduce(x, async_op=True) for x in ((small, large), (large, small))[rank % 2]]
    first, _ = [error_of(work.wait) for work in works]
    return first


def other_splits(rank):
    x, size = torch.ones(8, device=device()), dist.get_world_size()
    halves = [8 // size] * size
    wrong = [halves[0] - 1, *halves[1:-1], halves[-1] + 1]
    return error_of(
        dist.all_to_all_single, torch.empty_like(x), x, halves, wrong if rank else halves
    )


def other_size_received(rank):
    if rank == 0:
        return error_of(dist.send, torch.ones(3, device=device()), 1)
    return error_of(dist.recv, torch.ones(4, device=device()), 0)


def other_number(rank):
    """The tensors of a coalesced call, the first of which are the same."""
    return error_of(dist.all_reduce_coalesced, [torch.ones(3, device=device())] * (1 + rank % 2))


def other_part(rank):
    parts = [torch.ones(size, device=device()) for size in (2, 2 * dist.get_world_size())]
    return (
        error_of(dist.reduce_scatter_tensor, *parts)
        if rank
        else error_of(dist.broadcast, parts[0], 0)
    )


def no_barrier(rank):
    if rank:
        return error_of(dist.broadcast, torch.ones(1, device=device()), 0)
    return error_of(dist.barrier, device_ids=[rank])


def within_backward(rank):
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(3, 2).to(device()), device_ids=[device().index]
    )
    loss = model(torch.ones(1, 3, device=device())).sum()
    return (
        error_of(loss.backward)
        if rank
        else error_of(dist.all_reduce, torch.ones(7, device=device()))
    )


MISTAKES = (
    other_shape,
    other_dtype,
    other_operator,
    other_root,
    other_reduction,
    other_order,
    other_splits,
    other_size_received,
    other_number,
    other_part,
    no_barrier,
    within_backward,
)


def every_mistake(rank):
    """What this rank was told of each mistake; after each of them, the group still works."""
    found = {}
    for mistake in MISTAKES:
        found[mistake.__name__] = mistake(rank)
        x = torch.ones(2, device=device())
        dist.all_reduce(x)
        assert x.tolist() == [dist.get_world_size()] * 2, mistake
    return found
