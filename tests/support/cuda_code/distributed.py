"""torch.distributed with NCCL, a rank on each device: results, words, and what DDP's Reducer does.

A case is a call of `CALLS` or a training of `TRAININGS`, with a number of ranks. On CUDA each rank
is a process; simulated ranks are those of `simgpu.ranks`. All cases of one number of ranks run in
one world, one after the other.
"""

import json
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

from tests.support import collectives
from tests.support.cuda_code.sides import error_of, same_words

OWN_DEVICES = True  # simulated ranks make theirs
RANKS = (2, 3)


class Rank:
    """What a call gets: its number, how many ranks there are, its device, and tensors to send."""

    def __init__(self, number, count, device):
        self.number, self.count, self.device = number, count, device

    def tensor(self, *size, dtype=torch.float32):
        """1, 2, 3, ... times the number of the rank, plus 1."""
        length = torch.Size(size).numel()
        numbers = torch.arange(1, length + 1) * (self.number + 1)
        return numbers.to(dtype).reshape(size).to(self.device)

    def place(self, tensor):
        return tensor.to(self.device)

    def empty(self, *size, dtype=torch.float32):
        return torch.zeros(size, dtype=dtype).to(self.device)


def _form(name, *size, root=0, dtype="float32", **how):
    """A function of the table of collectives; what it writes, in a list if it takes one."""

    def call(rank):
        numbers = torch.arange(1, rank.count * torch.Size(size).numel() + 1)
        parts = [
            list((numbers * (one + 1)).to(getattr(torch, dtype)).reshape(-1, *size).unbind())
            for one in range(rank.count)
        ]
        _, outs = collectives.begin(name, parts, root, rank.place, **how)
        is_list = name in ("all_gather", "gather", "all_to_all")
        return (outs if is_list else torch.cat(outs)) if outs else None

    return call


def _reduced(op, dtype="float32"):
    return lambda rank: _form("all_reduce", 4, dtype=dtype, op=getattr(dist.ReduceOp, op))(rank)


def _scaled(rank):
    return _form("all_reduce", 4, op=dist._make_nccl_premul_sum(0.5))(rank)


def _all_gather_uneven(rank):
    parts = [[torch.arange(1.0, one + 2) * (one + 1)] for one in range(rank.count)]
    return collectives.begin("all_gather", parts, place=rank.place)[1]


def _all_to_all_uneven(rank):
    lengths = [one + 1 for one in range(rank.count)]
    numbers = torch.arange(1.0, sum(lengths) + 1)
    parts = [(numbers * length).split(lengths) for length in lengths]
    named = {"place": rank.place, "splits": True}
    return torch.cat(collectives.begin("all_to_all_single", parts, **named)[1])


def _ring(rank):
    out = rank.empty(3)
    after, before = (rank.number + 1) % rank.count, (rank.number - 1) % rank.count
    both = [
        dist.P2POp(dist.isend, rank.tensor(3), after),
        dist.P2POp(dist.irecv, out, before),
    ]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    return out


def _send(rank):
    out = rank.empty(2)
    if rank.number == 0:
        dist.send(rank.tensor(2), dst=1)
    elif rank.number == 1:
        dist.recv(out, src=0)
    return out


def _objects(rank):
    found = [None] * rank.count
    dist.all_gather_object(found, {"rank": rank.number})
    return [one["rank"] for one in found]


def _work(rank):
    work = dist.all_reduce(rank.tensor(2), async_op=True)
    work.wait()
    return [work.is_completed(), work.is_success(), len(work.result())]


def _pair(rank):
    group = dist.new_group([0, 1])
    tensor = rank.tensor(2)
    if rank.number < 2:
        dist.all_reduce(tensor, group=group)
    return tensor


CALLS = {
    **{f"all_reduce {op}": _reduced(op) for op in ("SUM", "PRODUCT", "MAX", "MIN", "AVG")},
    **{
        f"all_reduce {op} {dtype}": _reduced(op, dtype)
        for dtype in ("float64", "float16", "bfloat16", "int64", "int32", "uint8", "int8", "bool")
        for op in ("SUM", "MAX", "AVG")
    },
    "all_reduce SUM complex64": _reduced("SUM", "complex64"),
    "all_reduce MAX complex64": _reduced("MAX", "complex64"),
    "all_reduce SUM int16": _reduced("SUM", "int16"),
    "all_reduce BAND int64": _reduced("BAND", "int64"),
    "all_reduce BOR bool": _reduced("BOR", "bool"),
    "all_reduce BXOR bool": _reduced("BXOR", "bool"),
    "all_reduce scaled": _scaled,
    "broadcast": _form("broadcast", 2, 2, root=1),
    "reduce": _form("reduce", 3, root=1),
    "all_gather": _form("all_gather", 2),
    "all_gather of other sizes": _all_gather_uneven,
    "all_gather_into_tensor": _form("all_gather_into_tensor", 2),
    "reduce_scatter": _form("reduce_scatter", 2),
    "reduce_scatter_tensor": _form("reduce_scatter_tensor", 2),
    "all_to_all_single": _form("all_to_all_single", 1),
    "all_to_all_single of other sizes": _all_to_all_uneven,
    "all_to_all": _form("all_to_all", 2),
    "gather": _form("gather", 2),
    "scatter": _form("scatter", 2),
    "batch_isend_irecv": _ring,
    "send and recv": _send,
    "all_gather_object": _objects,
    "a Work": _work,
    "new_group of two": _pair,
    "barrier": lambda rank: dist.barrier(),
    "all_reduce on the CPU": lambda rank: dist.all_reduce(torch.ones(2)),
    "all_reduce of every second": lambda rank: dist.all_reduce(rank.tensor(4)[::2]),
    "all_reduce of nothing": lambda rank: dist.all_reduce(rank.tensor(0)),
    "all_gather of another dtype": lambda rank: dist.all_gather(
        [rank.empty(2, dtype=torch.float64) for _ in range(rank.count)], rank.tensor(2)
    ),
    "all_gather of too few": lambda rank: dist.all_gather([rank.empty(2)], rank.tensor(2)),
    "all_gather_into_tensor of a wrong size": lambda rank: dist.all_gather_into_tensor(
        rank.empty(rank.count * 2 + 1), rank.tensor(2)
    ),
    "reduce_scatter_tensor of a wrong size": lambda rank: dist.reduce_scatter_tensor(
        rank.empty(2), rank.tensor(rank.count * 2 + 1)
    ),
    "all_to_all_single of a wrong sum": lambda rank: dist.all_to_all_single(
        rank.empty(rank.count), rank.tensor(rank.count), [1] * rank.count, [2] * rank.count
    ),
    "broadcast from no rank": lambda rank: dist.broadcast(rank.tensor(2), src=rank.count),
    "scatter without a list": lambda rank: dist.scatter(rank.empty(2), None, src=rank.number),
    "gather without a list": lambda rank: dist.gather(rank.tensor(2), None, dst=rank.number),
    "send to itself": lambda rank: dist.send(rank.tensor(2), dst=rank.number),
    "all_reduce of a list": lambda rank: dist.all_reduce([rank.tensor(2)]),
}


# ---------------------------------------------------------------- training


class _Layers(torch.nn.Module):
    """Layers of integers, so that sums of gradients are exact in any order; one is not used."""

    def __init__(self, unused):
        super().__init__()
        self.first = torch.nn.Linear(4, 6)
        self.second = torch.nn.Linear(6, 3)
        self.norm = torch.nn.BatchNorm1d(3, affine=False)
        self.unused = torch.nn.Linear(3, 3) if unused else None
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                values = torch.arange(parameter.numel()) % (3 + number) - 1
                parameter.copy_(values.reshape(parameter.shape))

    def forward(self, x):
        return self.second(self.first(x))


TRAININGS = {
    "DDP": ({}, False),
    "DDP of small buckets": ({"bucket_cap_mb": 0.00005}, False),
    "DDP of views": ({"gradient_as_bucket_view": True, "bucket_cap_mb": 0.00005}, False),
    "DDP that finds unused parameters": ({"find_unused_parameters": True}, True),
    "DDP with unused parameters": ({}, True),
    "DDP of a static graph": ({"static_graph": True}, True),
    "DDP without buffers": ({"broadcast_buffers": False}, False),
}


def _train(options, unused):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def call(rank):
        index = [rank.device.index]
        model = DistributedDataParallel(
            _Layers(unused).to(rank.device), device_ids=index, **options
        )
        buckets = []

        def hook(group, bucket):
            shapes = [list(one.shape) for one in bucket.parameters()]
            buckets.append([bucket.index(), bucket.buffer().numel(), shapes, bucket.is_last()])
            return default_hooks.allreduce_hook(group, bucket)

        model.register_comm_hook(None, hook)
        steps = []
        for _ in range(3):
            buckets.clear()
            model(rank.tensor(2, 4)).sum().backward()
            gradients = [p.grad for p in model.parameters()]
            steps.append([list(buckets), _plain(gradients)])
            model.zero_grad()
        return steps

    return call


EVERYTHING = {**CALLS, **{name: _train(*row) for name, row in TRAININGS.items()}}


def _plain(value):
    """What a call returned, as plain data."""
    if isinstance(value, torch.Tensor):
        numbers = torch.view_as_real(value) if value.is_complex() else value
        return [str(value.dtype)[6:], list(value.shape), numbers.cpu().double().flatten().tolist()]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _all_calls(rank):
    """What each call does on one rank, in order; a call that raises on one rank does so on all."""
    seen = {}
    for name, call in EVERYTHING.items():
        try:
            seen[name] = _plain(call(rank))
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            seen[name] = error_of(error)
    return seen


# ---------------------------------------------------------------- worlds


def _rank_process(number, count, side, folder):
    device = side.device(number)
    side.module.set_device(device)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/store", rank=number, world_size=count
    )
    with side.values():
        seen = _all_calls(Rank(number, count, device))
    Path(folder, str(number)).write_text(json.dumps(seen))
    dist.destroy_process_group()


def _processes(count, side):
    os.environ.setdefault("EMULATED_CUDA_NCCL_SECONDS", "60")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_rank_process, (count, side, folder), nprocs=count)
        return [json.loads(Path(folder, str(number)).read_text()) for number in range(count)]


def _simulated(count):
    import simgpu

    def run(number):
        device = torch.device("cuda", number)
        return json.dumps(_all_calls(Rank(number, count, device)))

    return [json.loads(text) for text in simgpu.ranks(count, run)]


_kept: dict = {}  # what was seen of all calls, by number of ranks


def cases(model):
    if model == "h100":
        for count in RANKS:
            for name in EVERYTHING:
                yield {"call": name, "ranks": count}


def run(case, side):
    """What each rank saw."""
    count = case["ranks"]
    if count not in _kept:
        _kept[count] = _processes(count, side) if side.kind == "cuda" else _simulated(count)
    return [seen[case["call"]] for seen in _kept[count]]


def agree(recorded, seen):
    """Whether each rank saw the same."""
    return len(recorded) == len(seen) and all(map(same_words, recorded, seen))
