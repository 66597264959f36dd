"""What has not run yet is marked by values of its dtype that nobody takes for results."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

NOT_A_NUMBER = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)
MINUS_ONE = (torch.int8, torch.int16, torch.int32, torch.int64)


def marks(tensor):
    """Which elements are marked, of a tensor of the host."""
    if tensor.dtype in NOT_A_NUMBER:
        return tensor.isnan()
    if tensor.dtype in MINUS_ONE:
        return tensor == -1
    return tensor == (True if tensor.dtype is torch.bool else 255)


@pytest.mark.without("--races", reason="races on purpose")
@given(
    dtype=st.sampled_from((*NOT_A_NUMBER, *MINUS_ONE, torch.uint8, torch.bool)),
    length=st.integers(1, 3),
)
def test_each_dtype_has_a_mark(simulated, dtype, length):
    with simgpu.asynchronous():
        x = torch.zeros(length, device=simulated[0])
        rows = torch.stack((x, x))
        made = x.to(dtype), rows.to(dtype), rows.t().to(dtype)
        with torch.simgpu.stream(torch.simgpu.Stream(simulated[0])):
            early = [each.cpu() for each in made]
        assert all(marks(each).all() for each in early)
        assert not any(marks(each.cpu()).any() for each in made)
