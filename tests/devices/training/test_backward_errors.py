"""Errors that users' code raises during a backward pass come out of `backward`, on any device."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.backward_errors import KINDS, PlantedError
from tests.support.observe import plain


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(data=st.data())
def test_an_error_in_a_backward_pass_reaches_the_caller(devices, kind, data):
    device = data.draw(st.sampled_from(devices))
    x = torch.ones(4, device=device, requires_grad=True)
    with pytest.raises(PlantedError, match="raised in a backward pass"):
        KINDS[kind](x).sum().backward()
    # The device is as good as before, for this thread and its autograd.
    x = torch.ones(4, device=device, requires_grad=True)
    (x * x).sum().backward()
    assert plain(x.grad) == [2.0] * 4
