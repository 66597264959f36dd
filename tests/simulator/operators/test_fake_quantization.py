"""The fused observer of quantization-aware training: what it sees, and the room that it makes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.observe import place, plain, values

NAMES = ("running_min", "running_max", "scale", "zero_point")


def buffers_of(size):
    """Ranges, scales and zero points, as a module has them before its first call."""
    unseen = torch.full((size,), float("inf"))
    return [unseen, -unseen, torch.ones(size), torch.zeros(size, dtype=torch.int32)]


def observe(xs, buffers, switches, per_row, symmetric, device):
    """What calls return, and the buffers after them."""
    buffers = [buffer.to(device) for buffer in buffers]
    on = [torch.tensor([int(switch)], device=device) for switch in switches]
    grids = (0.25, -8, 7, 0, per_row, symmetric)
    made = [torch.fused_moving_avg_obs_fake_quant(x.to(device), *on, *buffers, *grids) for x in xs]
    return [plain(one) for one in (*made, *buffers)]


@strategies.fewer_examples
@given(
    slot=st.integers(0, 7),
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    calls=st.integers(1, 3),
    switches=st.tuples(st.booleans(), st.booleans()),
    symmetric=st.booleans(),
    ranges=st.sampled_from(["one", "one for each channel", "made by the first call"]),
)
def test_ranges_are_observed_as_on_the_cpu(
    simulated, slot, shape, calls, switches, symmetric, ranges
):
    """Also where the buffers are empty and the first call makes one number for each channel."""
    xs = [values(tuple(shape), "float32", seed) for seed in range(calls)]
    per_row = ranges != "one"
    size = {"one": 1, "one for each channel": shape[0]}.get(ranges, 0)
    if not size:
        switches = (True, True)  # what no switch writes is uninitialized
    found, expected = (
        observe(xs, buffers_of(size), switches, per_row, symmetric, device)
        for device in (place(slot, simulated), "cpu")
    )
    assert found == expected


@pytest.mark.parametrize("name", NAMES)
@given(channels=st.integers(2, 4), had=st.integers(0, 3))
def test_buffers_too_short_for_their_ranges_raise(simulated, name, channels, had):
    """They would be written past their ends; only where all are empty does a call make room."""
    short = buffers_of(channels)
    short[NAMES.index(name)] = short[NAMES.index(name)][: min(had, channels - 1)]
    if name == "running_min":
        short[0] = buffers_of(channels - 1)[0]  # not empty, or all would be made anew
    with pytest.raises(RuntimeError, match=f"expected {name} of {channels} numbers"):
        observe([torch.ones(channels, 2)], short, (True, True), True, False, simulated[1])


def test_an_empty_range_for_the_whole_tensor_raises(simulated):
    with pytest.raises(RuntimeError, match="expected running_min of 1 numbers"):
        observe([torch.ones(3, 2)], buffers_of(0), (True, True), False, False, simulated[1])
