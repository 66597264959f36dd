"""What a call refuses first, where more than one thing is wrong with it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from tests.support.worlds import few

# PyTorch has new names for both; those that programs have are tried here.
pytestmark = [
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
]

# How each is called, with the words for another dtype and for another size.
OF_ONE_TENSOR = {
    "all_gather": (
        lambda whole, part: dist.all_gather_into_tensor(whole, part),
        "output tensor must have the same type as input tensor",
        "output tensor size must be equal to world_size times input tensor size",
    ),
    "reduce_scatter": (
        lambda whole, part: dist.reduce_scatter_tensor(part, whole),
        "input tensor must be the same type as the output tensor",
        "input tensor must be the same size as output size times world size",
    ),
}


@pytest.mark.parametrize("name", sorted(OF_ONE_TENSOR))
@few
@given(
    count=strategies.world_sizes(1, 4),
    width=st.integers(1, 3),
    more=st.integers(1, 3),
    dtypes=st.permutations([torch.float32, torch.int64, torch.float16]),
)
def test_another_dtype_is_refused_before_another_size(name, count, width, more, dtypes):
    # As `_allgather_base` and `_reduce_scatter_base` of ProcessGroupNCCL do.
    call, of_dtype, of_size = OF_ONE_TENSOR[name]
    dtype, other, _ = dtypes

    def ask(rank):
        part = torch.zeros(width, dtype=dtype, device="cuda")
        for size in (count * width, count * width + more):
            with pytest.raises(TypeError, match=of_dtype):
                call(torch.zeros(size, dtype=other, device="cuda"), part)
        with pytest.raises(ValueError, match=of_size):
            call(torch.zeros(count * width + more, dtype=dtype, device="cuda"), part)
        call(torch.zeros(count * width, dtype=dtype, device="cuda"), part)

    simgpu.ranks(count, ask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@few
@given(count=strategies.world_sizes(1, 4), width=st.integers(1, 3), more=st.integers(1, 3))
def test_a_list_is_scattered_into_what_is_as_large_and_of_its_dtype(dtype, count, width, more):
    """torch.distributed looks at dtypes itself, and those who ask a group do not pass there."""

    def ask(rank):
        parts = [torch.zeros(width, device="cuda") for _ in range(count)]
        out = torch.zeros(width + more * (dtype is torch.float32), dtype=dtype, device="cuda")
        with pytest.raises(ValueError, match="numbers of elements and dtypes have to be equal"):
            dist.group.WORLD.reduce_scatter([out], [parts]).wait()

    simgpu.ranks(count, ask)
