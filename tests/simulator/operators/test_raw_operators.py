"""Operators as `torch.ops.aten` has them, and with tangents of forward-mode AD.

On CUDA a tangent stays behind where `copy_` takes its tensor to another device; here it follows.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad

from simgpu._ops import table
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_product_keeps_negative_zeros_in_float64_only(dtype):
    """cuBLAS adds products of other dtypes to 0; the CPU's zeros depend on its build."""
    product = table.facts_of(torch.ops.aten.mm.default).host
    first, second = torch.ones(2, 1, dtype=dtype), torch.zeros(1, 3, dtype=dtype)
    zeros = product(lambda keys, *factors: -torch.zeros(2, 3, dtype=dtype), None, first, second)
    assert zeros.signbit().tolist() == [[dtype == torch.float64] * 3] * 2


# PyTorch compiles its rules for forward mode when the first is needed.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

SHAPES = {
    "alike": ((2, 3), lambda x: x),
    "broadcast": ((3,), lambda x: x),
    "transposed": ((3, 2), lambda x: x.t()),
}


@pytest.mark.parametrize("shape", SHAPES)
@given(
    slots=st.tuples(st.integers(-1, 7), st.integers(-1, 7)),
    of_source=st.booleans(),
    of_target=st.booleans(),
)
def test_a_tangent_follows_a_copy(simulated, shape, slots, of_source, of_target):
    size, view = SHAPES[shape]
    source, target = (place(slot, simulated) for slot in slots)
    with forward_ad.dual_level():
        x, y = torch.rand(size, device=source), torch.rand(2, 3, device=target)
        tangent = torch.rand_like(x)
        if of_source:
            x = forward_ad.make_dual(x, tangent)
        if of_target:
            y = forward_ad.make_dual(y, torch.rand_like(y))
        y.copy_(view(x))
        value, found = forward_ad.unpack_dual(y * 2)
        assert torch.equal(value.cpu(), (view(x).detach() * 2).expand(2, 3).cpu())
        if not of_source:
            assert found is None if not of_target else not found.any()
            return
        assert found.device == target
        assert torch.equal(found.cpu(), (view(tangent) * 2).expand(2, 3).cpu())
