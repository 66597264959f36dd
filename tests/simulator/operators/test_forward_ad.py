"""Forward-mode AD across devices: a tangent goes where its tensor goes.

On CUDA a tangent stays behind where `copy_` takes its tensor to another device; here it follows.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad

from tests.support.observe import place

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
