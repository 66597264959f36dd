"""Which executor TorchScript is asked to use changes nothing of what scripts compute on devices."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

STEPS = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "doubled": lambda x: x * 2,
    "added": lambda x: x + 1,
    "squared": lambda x: x * x,
    "halves": lambda x: torch.cat(x.chunk(2)),
}


@given(
    steps=st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=5),
    default=st.booleans(),
    fuses=st.booleans(),
    differentiable=st.booleans(),
    index=st.integers(0, 3),
)
def test_a_script_computes_the_same_with_each_executor(
    simulated, steps, default, fuses, differentiable, index
):
    def function(x):
        for step in steps:
            x = STEPS[step](x)
        return x

    rows = torch.arange(-4.0, 8.0, device=simulated[index]).reshape(4, 3)
    had_default = torch._C._jit_set_profiling_executor(default)
    fused = torch._C._jit_set_texpr_fuser_enabled(fuses)
    try:
        traced = torch.jit.trace(function, rows)
        for _ in range(3):  # the default executor looks on once, and then compiles
            x, y = (rows.clone().requires_grad_(differentiable) for _ in range(2))
            there, expected = traced(x), function(y)
            assert torch.equal(there, expected)
            if differentiable:
                there.sum().backward()
                expected.sum().backward()
                torch.testing.assert_close(x.grad, y.grad)
    finally:
        torch._C._jit_set_profiling_executor(had_default)
        torch._C._jit_set_texpr_fuser_enabled(fused)


@given(asked=st.lists(st.booleans(), min_size=1, max_size=5))
def test_setting_the_executor_returns_the_previous_one(simulated, asked):
    had_default = torch._C._jit_set_profiling_executor(asked[0])
    try:
        for before, wanted in itertools.pairwise(asked):
            assert torch._C._jit_set_profiling_executor(wanted) is before
    finally:
        assert torch._C._jit_set_profiling_executor(had_default) is asked[-1]
