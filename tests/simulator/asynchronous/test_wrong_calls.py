"""Wrong shapes and dtypes are told where the call is made: what looks at values comes later."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool]
CALLS = {
    "mm": torch.mm,
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "complex": torch.complex,
    "heaviside": torch.heaviside,
    "cross": torch.linalg.cross,
    "index_add_": lambda a, b: a.index_add_(0, torch.zeros(3, dtype=torch.int64).to(a.device), b),
    "masked_fill_": lambda a, b: a.masked_fill_(b, 1),
    "cdist": torch.cdist,
    "gather": lambda a, b: a.gather(0, b),
    "softmax": lambda a, b: torch._softmax_backward_data(a, b, 0, a.dtype),
    "group_norm": lambda a, b: torch.nn.functional.group_norm(a, 3, b[0]),
}


def attempt(name, dtypes):
    """What the call raises; None of one that returns."""
    one, other = (torch.zeros(3, 3, dtype=dtype).to("simgpu:0") for dtype in dtypes)
    torch.simgpu.synchronize()
    try:
        CALLS[name](one, other)
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.without("--async", reason="compares with what is raised at once")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # told once, an error
@given(name=st.sampled_from(sorted(CALLS)), dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 2))
def test_dtypes_that_a_kernel_refuses_are_told_at_once(name, dtypes):
    with simgpu.devices(1):
        expected = attempt(name, dtypes)
        with simgpu.asynchronous():
            assert attempt(name, dtypes) == expected


@given(
    op=st.sampled_from([torch.floor_divide, torch.remainder, torch.fmod]),
    dtype=st.sampled_from([torch.int32, torch.int64, torch.float32]),
)
def test_a_kernel_that_takes_no_zeros_is_queued(simulated, op, dtype):
    """Whether it takes its arguments is asked with numbers that are none of the program's."""
    with simgpu.asynchronous() as queued:
        x = torch.full((2, 3), 7, dtype=dtype).to(simulated[0])
        torch.simgpu.synchronize()
        result = op(x, x - 4)
        assert queued.pending == 2
        assert result.cpu().tolist() == op(torch.full((2, 3), 7), 3).tolist()
