"""`torch.empty_like(x, device="cuda:1")` of sparse tensors, from wherever and to wherever."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

pytestmark = pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC) tensor support is in beta")

LAYOUTS = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda x: x.to_sparse_bsr((1, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 1)),
}
# And the number that all elements have, where they have one.
LIKES = {
    "empty": (torch.empty_like, None),
    "zeros": (torch.zeros_like, None),
    "ones": (torch.ones_like, 1),
    "full": (lambda x, **options: torch.full_like(x, 3, **options), 3),
}
PLACES = st.sampled_from(["cpu", "cuda:0", "cuda:1", "cuda"])


def parts(x):
    """The indices of a sparse tensor, and its values."""
    if x.layout is torch.sparse_coo:
        return [x._indices(), x._values()]
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [x.crow_indices(), x.col_indices(), x.values()]
    return [x.ccol_indices(), x.row_indices(), x.values()]


@pytest.mark.parametrize("like", sorted(LIKES))
@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    numbers=st.lists(st.integers(0, 1), min_size=8, max_size=8),
    places=st.tuples(PLACES, PLACES),
    dtype=st.sampled_from([None, torch.float64, torch.int32]),
)
def test_a_tensor_like_a_sparse_one_has_its_places(cuda, like, layout, numbers, places, dtype):
    """But for zeros, which has none, and those with coordinates, which have none either."""
    make, number = LIKES["zeros" if layout == "coo" else like]
    host = LAYOUTS[layout](torch.tensor(numbers, dtype=torch.float32).view(2, 4))
    found = make(host.to(places[0]), dtype=dtype, device=places[1])
    assert found.device.type == ("cpu" if places[1] == "cpu" else "cuda")
    assert (found.device.index or 0) == places[1].endswith(":1")
    assert (found.layout, found.dtype) == (host.layout, dtype or torch.float32)
    assert (found.shape, found.cpu().shape) == (host.shape, host.shape)
    *indices, values = parts(found.cpu())
    *wanted, of_host = parts(host)
    if make is torch.zeros_like:
        assert values.numel() == 0
        return
    assert all(torch.equal(*pair) for pair in zip(indices, wanted, strict=True))
    assert values.shape == of_host.shape
    assert number is None or torch.equal(values, torch.full_like(values, number))


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"coo"}))
def test_another_layout_is_refused_in_the_same_words(layout):
    x = LAYOUTS[layout](torch.ones(2, 4))
    reported = []
    for within in (simgpu.devices, simgpu.as_cuda):
        with within(1), pytest.raises(RuntimeError) as caught:
            torch.empty_like(x, layout=torch.strided)
        reported.append(str(caught.value))
    assert reported[0] == reported[1]


def test_the_cpus_kernels_are_there_again_afterwards():
    def kernels():
        return [
            line
            for name in ("empty_like", "zeros_like")
            for line in torch._C._dispatch_dump(f"aten::{name}").splitlines()
            if line.startswith(("SparseCsrCPU", "SparseCsrPrivateUse1"))
        ]

    with simgpu.devices(1):
        pass  # what the simulator registers is there from now on
    before = kernels()
    with simgpu.as_cuda(1):
        assert kernels() != before
    assert kernels() == before
