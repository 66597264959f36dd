"""Each collective against its definition, on exact numbers, whatever the world and its schedule."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu._distributed.collectives import Reduction
from simgpu.errors import CollectiveMismatchError
from tests.support import rank_cases, rounding
from tests.support.collectives import DTYPES
from tests.support.worlds import few, schedules

# PyTorch has new names for two of them; those that programs have are tried here.
pytestmark = [
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
]


@pytest.mark.parametrize("case", rank_cases.CASES)
@few
@given(
    count=strategies.world_sizes(1, 5),
    shape=st.lists(st.integers(1, 3), max_size=2).map(tuple),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
    async_op=st.booleans(),
    schedule=schedules,
)
def test_collectives_match_their_definition_in_threads(
    case, count, shape, dtype, seed, async_op, schedule
):
    call = rank_cases.CASES[case]
    simgpu.ranks(count, lambda rank: call(shape, dtype, seed, async_op), schedule=schedule)


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_tensors_without_elements_travel(shape):
    simgpu.ranks(3, lambda rank: rank_cases.every_collective(rank, shape, torch.float32, 1))


@few
@given(
    count=strategies.world_sizes(2, 6),
    size=st.integers(1, 40),
    model=st.sampled_from(["ordered", "ring", "tree", "random"]),
    seed=st.integers(0, 99),
)
def test_rounded_sums_keep_their_bound_and_are_equal_on_all_ranks(count, size, model, seed):
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(count, size, generator=generator)

    def add(rank):
        x = parts[rank].cuda()
        dist.all_reduce(x)
        return x.cpu()

    with simgpu.comm.reduction(model, seed=seed):
        sums = simgpu.ranks(count, add)
    for each in sums:
        assert torch.equal(each, sums[0])
    rounding.check_bound(sums[0], list(parts))
    if model == "ordered":
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        assert torch.equal(sums[0], total)


@few
@given(
    count=strategies.world_sizes(2, 4),
    factors=st.lists(st.sampled_from([0.5, 2.0, -1.0]), min_size=4, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
def test_each_rank_multiplies_by_its_own_factor(count, factors, dtype):
    def scale(rank):
        x = torch.full((2,), rank + 1.0, device="cuda", dtype=dtype)
        op = torch._C._distributed_c10d._make_nccl_premul_sum(factors[rank])
        dist.all_reduce(x, op)
        return x.tolist()

    wanted = sum((rank + 1) * factors[rank] for rank in range(count))
    assert simgpu.ranks(count, scale) == [[wanted, wanted]] * count


@few
@given(shape=st.lists(st.integers(1, 3), max_size=3), dims=st.integers(0, 4))
def test_recv_accepts_another_shape_of_equal_size(shape, dims):
    """NCCL counts elements."""
    values = torch.arange(float(torch.Size(shape).numel()))
    other = [1] * dims + [len(values)]

    def exchange(rank):
        x = values.reshape(shape if rank else other).cuda()
        if rank:
            return dist.send(x, 0)
        dist.recv(x.zero_(), 1)
        return x.tolist()

    assert simgpu.ranks(2, exchange)[0] == values.reshape(other).tolist()


@pytest.mark.parametrize(
    ("backend", "dtype", "op", "error", "text"),
    [
        ("nccl", torch.int32, "BOR", ValueError, "Cannot use ReduceOp.BOR with NCCL"),
        ("nccl", torch.bool, "AVG", TypeError, "Cannot use ReduceOp.AVG with boolean inputs"),
        ("nccl", torch.int16, "SUM", TypeError, "not supported for NCCL process group: Short"),
        ("nccl", torch.complex64, "MAX", ValueError, "does not support .*MAX on complex"),
        ("gloo", torch.float32, "BXOR", RuntimeError, "BXOR with non-integral dtype"),
    ],
)
def test_unreducible_dtype_is_refused(backend, dtype, op, error, text):
    def reduce(rank):
        dist.all_reduce(torch.ones(2, dtype=dtype, device="cuda"), getattr(dist.ReduceOp, op))

    with pytest.raises(error, match=text):
        simgpu.ranks(2, reduce, backend=backend)


ALL_DTYPES = (*DTYPES, torch.bool, torch.int16, torch.uint16, torch.float8_e5m2)
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


def refusal(reduce):
    """The first words in which something is refused; None if it is not."""
    try:
        reduce()
    except (RuntimeError, ValueError, TypeError) as error:
        return str(error).partition(":")[0].split()[:4]
    return None


@pytest.mark.parametrize("operation", REDUCTIONS)
@given(dtype=st.sampled_from(ALL_DTYPES), device=st.sampled_from(["cpu", "cuda"]))
def test_gloo_refuses_the_same_reductions_as_pytorchs(operation, dtype, device):
    premul = operation == "PREMUL_SUM"
    op = dist._make_nccl_premul_sum(2.0) if premul else getattr(dist.ReduceOp, operation)
    options = dist.AllreduceOptions()
    options.reduceOp = op
    own = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    x = torch.ones(2).to(dtype)
    wanted = refusal(lambda: own.allreduce([x], options).wait())

    def of_rank(rank):
        return refusal(lambda: dist.all_reduce(x.to(device), op))

    assert simgpu.ranks(1, of_rank, backend="cpu:gloo,cuda:gloo") == [wanted]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_gloo_sends_any_dtype(dtype):
    def exchange(rank):
        x = torch.full((2,), 2.0 - rank).to("cuda", dtype)
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        return x.float().tolist()

    wanted = torch.full((2,), 2.0).to(dtype).float().tolist()
    assert simgpu.ranks(2, exchange, backend="gloo") == [wanted] * 2


@few
@given(
    count=strategies.world_sizes(1, 4),
    rows=st.integers(1, 5),
    width=st.integers(0, 3),
    seed=st.integers(0, 99),
    backed=st.booleans(),
    schedule=schedules,
)
def test_sparse_tensors_are_summed_by_gloo(count, rows, width, seed, backed, schedule):
    def add(rank):
        rank_cases.sparse_sum(rank, rows, width, seed, backed)

    simgpu.ranks(count, add, backend="gloo", schedule=schedule)


def test_sparse_tensors_of_differing_shapes_raise():
    def reduce(rank):
        dist.all_reduce(torch.eye(2 + rank).to_sparse().cuda())

    with pytest.raises(CollectiveMismatchError, match=r"sparse float32 \(2, 2\) SUM at .*test_col"):
        simgpu.ranks(2, reduce, backend="gloo")


@few
@given(count=st.integers(2, 5), data=st.data())
def test_mismatch_in_a_coalesced_call_names_its_tensor(count, data):
    differs = data.draw(st.integers(1, count))

    def reduce(rank):
        sizes = [3 + (rank == 1 and number == differs) for number in range(1, count + 1)]
        dist.all_reduce_coalesced([torch.ones(size, device="cuda") for size in sizes])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, that this function is deprecated
        with pytest.raises(CollectiveMismatchError) as raised:
            simgpu.ranks(2, reduce)
    text = str(raised.value)
    assert text.startswith(f"call {differs} of group '0'")
    for size in (3, 4):
        assert f"all_reduce float32 ({size},) SUM ({differs} of {count}) at " in text


@few
@given(numbers=st.lists(st.integers(-9, 9), min_size=2, max_size=5))
def test_mean_of_integers_is_truncated(numbers):
    def mean(rank):
        x = torch.tensor([numbers[rank], -abs(numbers[rank]) - 1], device="cuda")
        dist.all_reduce(x, dist.ReduceOp.AVG)
        return x.tolist()

    sums = sum(numbers), sum(-abs(number) - 1 for number in numbers)
    wanted = [int(total / len(numbers)) for total in sums]
    assert simgpu.ranks(len(numbers), mean) == [wanted] * len(numbers)


@few
@given(
    count=strategies.world_sizes(1, 5),
    shape=st.lists(st.integers(1, 3), max_size=2),
    backend=st.sampled_from(["nccl", "gloo"]),
    scattered=st.booleans(),
)
def test_complex_mean_is_the_mean_of_both_parts(count, shape, backend, scattered):
    generator = torch.Generator().manual_seed(count)
    parts = torch.randint(-9, 10, (count, count, *shape, 2), generator=generator).float()

    def mean(rank):
        x = parts[rank].cuda()
        found = []
        for whole in (x, torch.view_as_complex(x.clone())):
            out = torch.empty_like(whole[0]) if scattered else whole
            if scattered:
                dist.reduce_scatter(out, list(whole.unbind()), dist.ReduceOp.AVG)
            else:
                dist.all_reduce(whole, dist.ReduceOp.AVG)
            found.append(out.cpu())
        return found

    for real, of_complex in simgpu.ranks(count, mean, backend=backend):
        assert torch.equal(torch.view_as_real(of_complex), real)
    if not scattered:
        assert torch.allclose(real, parts.mean(0), atol=1e-5)


def test_bits_and_truth_values_are_reduced():
    def bits(rank):
        x = torch.tensor([rank + 1], device="cuda")
        dist.all_reduce(x, dist.ReduceOp.BOR)
        any_, all_ = (torch.tensor([rank == 0, True], device="cuda") for _ in range(2))
        dist.all_reduce(any_)
        dist.all_reduce(all_, dist.ReduceOp.PRODUCT)
        return x.item(), any_.tolist(), all_.tolist()

    assert simgpu.ranks(3, bits, backend="gloo") == [(3, [True, True], [False, True])] * 3


def test_collectives_are_traced_and_allocate_no_device_memory():
    def add(rank):
        x = torch.ones(1000, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        dist.all_reduce(x)
        return torch.cuda.max_memory_allocated() - before

    with simgpu.trace() as trace:
        assert simgpu.ranks(3, add) == [0, 0, 0]
    seen = [record for record in trace if record.collective is not None]
    assert {record.op for record in seen} == {"c10d.allreduce_"}
    assert sorted((record.device.index, record.nbytes) for record in seen) == [
        (rank, 4000) for rank in range(3)
    ]
    assert {(r.collective.group, r.collective.number, r.collective.ranks) for r in seen} == {
        ("0", 1, (0, 1, 2))
    }
    assert all("test_collectives.py:" in record.collective.place for record in seen)


@given(
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    count=st.integers(1, 9),
    numbers=st.lists(st.floats(1 / 8, 8, width=16), min_size=1, max_size=20),
    average=st.booleans(),
)
def test_factor_is_rounded_to_the_dtype(dtype, count, numbers, average):
    """NCCL rounds 1/n, and the factor of PREMUL_SUM, to the dtype; then it rounds the product."""
    mine = torch.tensor(numbers, dtype=dtype)
    reduction = Reduction("AVG") if average else Reduction("PREMUL_SUM", 1.0 / count)
    factor = torch.tensor(1.0 / count).to(dtype).double()
    assert torch.equal(reduction.prepare(mine, count), (mine.double() * factor).to(dtype))


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype, device="cuda")


def sparse():
    return torch.eye(2).to_sparse().cuda()


# What two ranks ask, of which backend, and its error. Where dtype and size are wrong,
# ProcessGroupNCCL refuses the dtype.
REFUSED = {
    "sparse to nccl": (
        lambda: dist.all_reduce(sparse()),
        *("nccl", RuntimeError, "NCCL does not support all_reduce with sparse tensors"),
    ),
    "sparse maximum": (
        lambda: dist.all_reduce(sparse(), dist.ReduceOp.MAX),
        *("gloo", RuntimeError, "all_?reduce of sparse tensors only works with ReduceOp.SUM"),
    ),
    "gaps": (
        lambda: dist.all_reduce(ones(2, 3).t()),
        *("nccl", ValueError, "Tensors must be contiguous"),
    ),
    "gaps in a send": (
        lambda: dist.send(ones(2, 4)[:, ::2], 1 - dist.get_rank()),
        *("nccl", ValueError, "P2P must be non-overlapping and dense"),
    ),
    "overlap in a send": (
        lambda: dist.send(ones(2, 1).expand(2, 4), 1 - dist.get_rank()),
        *("nccl", ValueError, "P2P must be non-overlapping and dense"),
    ),
    "the CPU": (
        lambda: dist.all_reduce(torch.ones(2)),
        *("nccl", RuntimeError, "No backend type associated with device type cpu"),
    ),
    "a tag below 0": (
        lambda: dist.isend(torch.ones(1), 1 - dist.get_rank(), tag=-1),
        *("gloo", RuntimeError, "Tag must be nonnegative"),
    ),
    "a source outside": (
        lambda: dist.broadcast(ones(1), src=5),
        *("nccl", ValueError, r"broadcast float32 \(1,\) from 5: invalid root rank: 5"),
    ),
    "a target outside": (
        lambda: dist.reduce(ones(1), dst=2),
        *("nccl", ValueError, "invalid root rank: 2, group '0' has 2 ranks, from 0"),
    ),
    "a scatter from outside": (
        lambda: dist.scatter(ones(1), src=2),
        *("nccl", ValueError, "invalid root rank: 2"),
    ),
    "a send to outside": (
        lambda: dist.send(ones(1), dst=2),
        *("nccl", ValueError, "invalid rank: 2"),
    ),
    "dtype and size of a gather": (
        lambda: dist.all_gather_into_tensor(ones(3, dtype=torch.int64), ones(1)),
        *("nccl", TypeError, "output tensor must have the same type as input tensor"),
    ),
    "size of a gather": (
        lambda: dist.all_gather_into_tensor(ones(3), ones(1)),
        *("nccl", ValueError, "output tensor size must be equal to world_size times input"),
    ),
    "dtype and size of a scattered sum": (
        lambda: dist.reduce_scatter_tensor(ones(1, dtype=torch.int64), ones(3)),
        *("nccl", TypeError, "input tensor must be the same type as the output tensor"),
    ),
    "size of a scattered sum": (
        lambda: dist.reduce_scatter_tensor(ones(1), ones(3)),
        *("nccl", ValueError, "input tensor must be the same size as output size times world"),
    ),
    "size of a scattered list": (
        lambda: dist.group.WORLD.reduce_scatter([ones(2)], [[ones(1), ones(1)]]),
        *("nccl", ValueError, "numbers of elements and dtypes have to be equal"),
    ),
    "dtype of a scattered list": (
        lambda: dist.group.WORLD.reduce_scatter([ones(1, dtype=torch.int64)], [[ones(1), ones(1)]]),
        *("nccl", ValueError, "numbers of elements and dtypes have to be equal"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_call_is_refused(name):
    call, backend, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        simgpu.ranks(2, lambda rank: call(), backend=backend)
