"""Buffers that a forward resizes: those of the first replica are the module's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel

KINDS = {"ours": dataparallel.DataParallel, "theirs": nn.DataParallel}


class Ranges(nn.Module):
    """Learns at its first call how many columns there are, as observers of quantization do."""

    def __init__(self, held):
        super().__init__()
        self.register_buffer("least", torch.full((held,), 9.0))
        self.slope = nn.Parameter(torch.ones(()))

    def forward(self, x):
        low = x.amin(0)
        if self.least.numel() == 0:
            self.least.resize_(low.shape).fill_(9.0)
        self.least.copy_(torch.minimum(self.least, low))
        return self.slope * (x - self.least)


@pytest.mark.parametrize("name", sorted(KINDS))
@given(
    count=st.integers(1, 4),
    columns=st.integers(1, 4),
    held=st.integers(0, 1),
    grad=st.booleans(),
    cached=st.booleans(),
)
def test_resize_in_the_first_replica_is_kept(simulated, name, count, columns, held, grad, cached):
    """The published case is PyTorch's own, test_qat_data_parallel of its quantization tests."""
    module = Ranges(held and columns).to(simulated[0])
    options = {"cache_parameters": cached} if name == "ours" else {}
    parallel = KINDS[name](module, list(range(count)), **options)
    rows = torch.arange(8.0 * columns, device=simulated[0]).reshape(8, columns).flip(0)
    with torch.set_grad_enabled(grad):
        parallel(rows)
        again = parallel(rows)
    first = rows.chunk(count)[0].amin(0)
    assert module.least.tolist() == torch.minimum(first, first.new_tensor(9.0)).tolist()
    assert again.shape == rows.shape
