"""Operators as `torch.ops.aten` has them: numbers for tensors, what outside devices are asked."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._ops.calls import Arguments
from tests.support.observe import place, plain, values

BINARY = ("add", "sub", "mul", "div")


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("first", [False, True])
def test_raw_operators_take_a_number_for_a_tensor(simulated, name, first):
    op = getattr(torch.ops.aten, name).Tensor
    x = values((2, 3), "float32", seed=1)
    mine, expected = (op(2.5, y) if first else op(y, 2.5) for y in (x.to(simulated[1]), x))
    assert mine.device == simulated[1]
    assert plain(mine) == plain(expected)


@given(pair=st.tuples(st.integers(-1, 7), st.integers(0, 7)), wait=st.booleans())
def test_a_copy_from_is_a_copy_the_other_way_round(simulated, pair, wait):
    source, target = (
        values((2, 3), "float32", seed).to(place(slot, simulated)) for seed, slot in enumerate(pair)
    )
    expected = plain(source)
    result = torch.ops.aten._copy_from(source, target, not wait)
    assert result.data_ptr() == target.data_ptr()
    assert plain(target) == plain(source) == expected


def test_a_call_without_tensors_of_a_device_is_handed_on_as_it_is(simulated):
    x, y = torch.ones(2), torch.ones(2)
    index, (first, second), _ = Arguments(torch.ops.aten.add.Tensor).read((x, y), {})
    assert index == -1
    assert (first is x, second is y) == (True, True)
