"""What each collective means, and how a program calls it: one table for every transport.

The definitions say what each rank gets of what all ranks bring; `CALLS` has the functions of
torch.distributed. Real GPUs run these too, so nothing of a simulator is imported here.
"""

import functools

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
REDUCTIONS = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


def brought(count, shape, dtype, seed):
    """For each of `count` ranks, a tensor for each rank: their sums and products are exact."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(1, 4, (count, count, *shape), generator=generator).to(dtype)
    return [list(row.unbind()) for row in drawn]


def uneven(count, dtype, seed):
    """The same with other lengths for each pair; one of the ranks may send or get nothing."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (count, count), generator=generator)
    lengths[seed % (count + 1) :][:1] = 0
    lengths[:, seed // 2 % (count + 1) :][:, :1] = 0
    return [
        [torch.full((int(length),), 10 * rank + to).to(dtype) for to, length in enumerate(row)]
        for rank, row in enumerate(lengths)
    ]


def _first(parts):
    return [row[0] for row in parts]


# What a rank gets, of what each rank has for each (`parts`), a root, and a sum of several tensors.
MEANINGS = {
    "barrier": lambda parts, rank, root, add: [],
    "broadcast": lambda parts, rank, root, add: [parts[root][0]],
    "all_gather": lambda parts, rank, root, add: _first(parts),
    "gather": lambda parts, rank, root, add: _first(parts) if rank == root else [],
    "scatter": lambda parts, rank, root, add: [parts[root][rank]],
    "all_to_all": lambda parts, rank, root, add: [row[rank] for row in parts],
    "all_reduce": lambda parts, rank, root, add: [add(_first(parts))],
    "reduce": lambda parts, rank, root, add: [add(_first(parts))] if rank == root else [],
    "reduce_scatter": lambda parts, rank, root, add: [add([row[rank] for row in parts])],
}
IN_PLACE = ("broadcast", "all_reduce", "reduce")
GIVES_EACH = ("scatter", "all_to_all", "reduce_scatter")


def wanted(kind, parts, rank, root=0, op="SUM"):
    """The outputs that a rank has to have."""
    add = functools.partial(functools.reduce, REDUCTIONS[op])
    return MEANINGS[kind](parts, rank, root, add)


def given(kind, parts, rank, root=0):
    """What a rank passes: its tensor, or one for each rank; of a scatter, only the root has any."""
    if kind == "barrier" or (kind == "scatter" and rank != root):
        return []
    return parts[rank] if kind in GIVES_EACH else parts[rank][:1]


def joined(tensors):
    """As one tensor, for the functions that take one in place of a list."""
    return torch.cat(tensors) if tensors[0].dim() else torch.stack(tensors)


# PyTorch's functions, with what is given before what is to be written: lists, or one tensor each.
CALLS = {
    "broadcast": lambda ins, outs, root, **how: dist.broadcast(ins[0], root, **how),
    "all_reduce": lambda ins, outs, root, **how: dist.all_reduce(ins[0], **how),
    "reduce": lambda ins, outs, root, **how: dist.reduce(ins[0], root, **how),
    "all_gather": lambda ins, outs, root, **how: dist.all_gather(outs, ins[0], **how),
    "gather": lambda ins, outs, root, **how: dist.gather(ins[0], outs or None, root, **how),
    "scatter": lambda ins, outs, root, **how: dist.scatter(outs[0], ins or None, root, **how),
    "reduce_scatter": lambda ins, outs, root, **how: dist.reduce_scatter(outs[0], ins, **how),
    "all_to_all": lambda ins, outs, root, **how: dist.all_to_all(outs, ins, **how),
}
# With the collective that each is a form of.
FLAT_CALLS = {
    "all_gather_into_tensor": (
        "all_gather",
        lambda x, out, **how: dist.all_gather_into_tensor(out, x, **how),
    ),
    "reduce_scatter_tensor": (
        "reduce_scatter",
        lambda x, out, **how: dist.reduce_scatter_tensor(out, x, **how),
    ),
    "all_to_all_single": (
        "all_to_all",
        lambda x, out, **how: dist.all_to_all_single(out, x, **how),
    ),
}
NAMES = (*CALLS, *FLAT_CALLS)


def cuda(tensor):
    return tensor.to(torch.device("cuda", torch.cuda.current_device()))


def begin(name, parts, root=0, place=cuda, place_out=None, splits=False, **how):
    """Call a function of torch.distributed as this rank of the default group.

    Args:
        name: one of `NAMES`.
        parts: what each rank has for each.
        place: makes the tensor that is passed, on a device, of one on the CPU.
        place_out: makes those that are written, if otherwise.
        splits: pass the lengths of the parts of a flat tensor.
        how: other arguments of the function.

    Returns:
        What the call returned, and the outputs, which are there when it is over.
    """
    kind, flat_call = FLAT_CALLS.get(name, (name, None))
    rank = dist.get_rank()
    ins = [place(tensor.clone()) for tensor in given(kind, parts, rank, root)]
    if kind in IN_PLACE:
        work = CALLS[name](ins, ins, root, **how)
        return work, ins if kind != "reduce" or rank == root else []
    likes = wanted(kind, parts, rank, root)
    outs = [torch.zeros_like((place_out or place)(like)) for like in likes]
    if flat_call is None:
        return CALLS[name](ins, outs, root, **how), outs
    if splits:
        how["output_split_sizes"] = [len(out) for out in outs]
        how["input_split_sizes"] = [len(tensor) for tensor in ins]
    is_scalar, out = not outs[0].dim(), joined(outs)
    work = flat_call(joined(ins), out, **how)
    return work, list(out.unbind() if is_scalar else out.split([len(each) for each in outs]))
