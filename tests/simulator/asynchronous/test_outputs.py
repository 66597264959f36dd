"""An output without elements whose old memory the kernel reads: it is there before it is read."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

CALLS = {
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "gather": lambda x, out: torch.gather(x, 0, (x - x).long(), out=out),
}


@pytest.mark.parametrize("name", sorted(CALLS))
@given(size=st.integers(1, 9), seed=st.integers(0, 9))
def test_queued_work_runs_before_a_read(simulated, name, size, seed):
    def run():
        out = torch.ones(size, device=simulated[0])
        x = out.view(size)
        x.mul_(3)
        out.resize_(0)
        return CALLS[name](x, out).cpu()

    at_once = run()
    with simgpu.asynchronous(seed=seed):
        assert torch.equal(run(), at_once)
