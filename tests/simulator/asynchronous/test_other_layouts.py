"""Sparse, nested and quantized tensors have results too, whatever was queued before."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning"),
]


def nested(x):
    return torch.nested.nested_tensor([x, x[:1]]).to(x.device)


# What makes one of a dense matrix, and what makes a dense tensor of it again.
KINDS = {
    "sparse_coo": (torch.Tensor.to_sparse, lambda x: torch.sparse.mm(x, x.to_dense())),
    "sparse_csr": (torch.Tensor.to_sparse_csr, lambda x: (x * 2).to_dense()),
    "sparse_bsr": (lambda x: x.to_sparse_bsr((1, 1)), torch.Tensor.to_dense),
    "nested": (nested, lambda x: (x * 2).to_padded_tensor(0.0)),
}


@pytest.mark.parametrize("kind", KINDS)
@given(number=st.integers(-3, 3), seed=st.none() | st.integers(0, 9))
def test_other_layouts_are_computed_from_what_was_queued(simulated, kind, number, seed):
    make, use = KINDS[kind]
    host = torch.diag(torch.arange(1.0, 4.0)) + number
    with simgpu.asynchronous(seed):
        queued = host.to(simulated[0], non_blocking=True) * 2
        assert use(make(queued)).tolist() == use(make(host * 2)).tolist()
