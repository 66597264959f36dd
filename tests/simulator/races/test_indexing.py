"""Indexing on a stream: a GPU makes the host wait for how much of a mask is true, and else not."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu

SIZE = 6


@st.composite
def indices(draw):
    """Numbers of places, or a mask."""
    if draw(st.booleans()):
        return draw(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE))
    return draw(st.lists(st.booleans(), min_size=SIZE, max_size=SIZE))


@pytest.mark.without("--races", reason="races on purpose")
@given(index=indices(), assigned=st.sampled_from((None, "number", "tensor")))
@example(index=[0, 2], assigned=None)
@example(index=[True, False] * (SIZE // 2), assigned=None)
@example(index=[True, False] * (SIZE // 2), assigned="number")
@example(index=[True, False] * (SIZE // 2), assigned="tensor")
def test_the_host_waits_for_masks_alone(simulated, index, assigned):
    """What is asked for later comes after the stream that the host has waited for."""
    device = simulated[0]
    x, y = torch.zeros(SIZE, device=device), torch.zeros(SIZE, device=device)
    where = torch.tensor(index, device=device)
    count = sum(index) if where.dtype == torch.bool else len(index)
    value = torch.ones(count, device=device) if assigned == "tensor" else 1.0
    torch.simgpu.synchronize(device)
    with simgpu.races() as races:
        with torch.simgpu.Stream(device):
            y.add_(1)
            if assigned is None:
                _ = x[where]
            else:
                x[where] = value
        y.add_(1)
    assert bool(races) == (where.dtype != torch.bool or assigned == "number")
