"""Indexing on a stream: a GPU makes the host wait for how much of a mask is true, and else not."""

import pytest
import torch
from hypothesis import assume, example, given
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
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8 is now deprecated")
@given(
    index=indices(),
    assigned=st.sampled_from((None, "number", "tensor")),
    mask=st.sampled_from((torch.bool, torch.uint8)),
)
@example(index=[0, 2], assigned=None, mask=torch.bool)
@example(index=[True, False] * (SIZE // 2), assigned=None, mask=torch.bool)
@example(index=[True, False] * (SIZE // 2), assigned="number", mask=torch.bool)
@example(index=[True, False] * (SIZE // 2), assigned="tensor", mask=torch.bool)
@example(index=[True, False] * (SIZE // 2), assigned="tensor", mask=torch.uint8)
def test_the_host_only_waits_for_masks(simulated, index, assigned, mask):
    """What is asked for later comes after the stream that the host has waited for."""
    device = simulated[0]
    x, y = torch.zeros(SIZE, device=device), torch.zeros(SIZE, device=device)
    is_mask = isinstance(index[0], bool)
    # PyTorch refuses a number for a mask of bytes, on the CPU too.
    assume(not (is_mask and assigned == "number" and mask is torch.uint8))
    where = torch.tensor(index, dtype=mask if is_mask else torch.long, device=device)
    count = sum(index) if is_mask else len(index)
    # Of one element it has no dimension where it is assigned, and passes for a number.
    assume(not (is_mask and assigned == "tensor" and count == 1))
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
    assert bool(races) == (not is_mask or assigned == "number")
