"""How a rank's part of a reduction is prepared, number by number, and in which order all are."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu._distributed.collectives import Reduction
from tests.support.worlds import few


@given(
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    count=st.integers(1, 9),
    numbers=st.lists(st.floats(1 / 8, 8, width=16), min_size=1, max_size=20),
    average=st.booleans(),
)
def test_a_factor_is_a_number_of_the_dtype(dtype, count, numbers, average):
    """NCCL rounds 1/n, and the factor of PREMUL_SUM, to the dtype; then it rounds the product."""
    mine = torch.tensor(numbers, dtype=dtype)
    reduction = Reduction("AVG") if average else Reduction("PREMUL_SUM", 1.0 / count)
    factor = torch.tensor(1.0 / count).to(dtype).double()
    assert torch.equal(reduction.prepare(mine, count), (mine.double() * factor).to(dtype))


@few
@given(
    count=strategies.world_sizes(2, 4),
    model=st.sampled_from(("ring", "tree")),
    rows=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_a_part_of_a_sum_has_the_bits_that_it_has_in_the_whole(count, model, rows, seed):
    """A ring begins each segment of the data at another rank."""
    numbers = torch.Generator().manual_seed(seed)
    parts = torch.randn(count, count * rows, generator=numbers) * 10 ** torch.arange(count)[:, None]

    def add(rank):
        whole, part = parts[rank].cuda(), torch.empty(rows, device="cuda")
        with simgpu.comm.reduction(model):
            dist.reduce_scatter(part, list(whole.chunk(count)))
            dist.all_reduce(whole)
        return part.tolist(), whole.chunk(count)[rank].tolist()

    with simgpu.as_cuda(4):
        for of_part, of_whole in simgpu.ranks(count, add):
            assert of_part == of_whole
