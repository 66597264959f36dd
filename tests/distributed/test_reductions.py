"""How a rank's part of a reduction is prepared, number by number."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._distributed.reductions import Reduction


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
