"""Parts of one tensor that two streams use, one of which writes: they race if they share bytes."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu

SIZE = 24


@st.composite
def parts(draw):
    """The shape, strides and offset of a view of `SIZE` numbers."""
    shape = draw(st.lists(st.integers(1, 3), max_size=2))
    stride = [draw(st.integers(1, 5)) for _ in shape]
    last = sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return shape, stride, draw(st.integers(0, SIZE - 1 - last))


def numbers(part):
    """Which of the numbers a view has."""
    return set(torch.arange(SIZE).as_strided(*part).flatten().tolist())


@pytest.mark.without("--races", reason="races on purpose")
@given(one=parts(), other=parts(), writes=st.booleans(), known=st.booleans())
@example(one=([4], [4], 0), other=([4], [4], 1), writes=True, known=True)
@example(one=([], [], 4), other=([], [], 4), writes=True, known=False)
@example(one=([2], [1], 4), other=([SIZE], [1], 0), writes=True, known=False)
def test_parts_race_if_they_have_a_number_in_common(simulated, one, other, writes, known):
    """Also of memory that was allocated before anybody looked for races."""
    before = torch.zeros(SIZE, device=simulated[0])
    with simgpu.races() as races:
        x = torch.zeros(SIZE, device=simulated[0]) if known else before
        side = torch.simgpu.Stream(simulated[0])
        side.wait_stream(torch.simgpu.current_stream(simulated[0]))
        first, second = (x.as_strided(*part) for part in (one, other))
        with side:
            first.fill_(1.0)
        _ = second.fill_(2.0) if writes else second + 1
        torch.simgpu.synchronize(simulated[0])
    assert bool(races) == bool(numbers(one) & numbers(other))
