"""Sums and differences of COO tensors: the values of one, and after them those of the other."""

import operator

import torch
from hypothesis import given
from hypothesis import strategies as st

FACTORS = st.sampled_from([1, 2, -3])
DTYPES = st.sampled_from(
    [torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.int32]
)


@st.composite
def coo(draw, dtype, dense, full=False):
    """A COO tensor of 3 rows and 4 columns: coalesced or not, with no place twice if it is.

    Two `full` ones have more values than numbers, unless their rows are dense.
    """
    merged = draw(st.booleans())
    last, most = (2, 3) if dense else (11, 9)
    least = most if full else 0
    places = st.lists(st.integers(0, last), min_size=least, max_size=most, unique=merged)
    places = torch.tensor(draw(places), dtype=torch.int64)
    values = torch.arange(1, len(places) * (4 if dense else 1) + 1)
    if dense:
        x = torch.sparse_coo_tensor(places[None], values.view(-1, 4).to(dtype), (3, 4))
    else:
        x = torch.sparse_coo_tensor(
            torch.stack((places // 4, places % 4)), values.to(dtype), (3, 4)
        )
    return x.coalesce() if merged else x


WAYS = {
    "+": lambda x, y, alpha: x + y * alpha,
    "-": lambda x, y, alpha: x - y * -alpha,
    "add": lambda x, y, alpha: torch.add(x, y, alpha=alpha),
    "sub": lambda x, y, alpha: torch.sub(x, y, alpha=-alpha),
    "add_": lambda x, y, alpha: x.clone().add_(y, alpha=alpha),
    "sub_": lambda x, y, alpha: x.clone().sub_(y, alpha=-alpha),
    "+=": lambda x, y, alpha: operator.iadd(x.clone(), y * alpha),
    "out=": lambda x, y, alpha: torch.add(x, y, alpha=alpha, out=torch.zeros_like(x)),
}


@given(
    data=st.data(),
    dtype=DTYPES,
    dense=st.booleans(),
    alpha=FACTORS,
    way=st.sampled_from(sorted(WAYS)),
)
def test_a_sum_has_the_values_of_both(devices, data, dtype, dense, alpha, way):
    """In their order, and merged only where there were more of them than numbers in the tensor."""
    device = data.draw(st.sampled_from(devices))
    full = data.draw(st.booleans())
    x, y = (data.draw(coo(dtype, dense, full)) for _ in range(2))
    got = WAYS[way](x.to(device), y.to(device), alpha)
    assert (got.device, got.dtype, got.shape) == (device, dtype, x.shape)
    values = torch.cat((x._values(), y._values() * alpha))
    joined = torch.sparse_coo_tensor(torch.cat((x._indices(), y._indices()), 1), values, x.shape)
    assert torch.equal(got.cpu().to_dense(), joined.to_dense())
    if x._nnz() and y._nnz():
        if joined._nnz() > joined.numel():
            joined = joined.coalesce()
        else:
            assert not got.is_coalesced()
        assert torch.equal(got._indices().cpu(), joined._indices())
        assert torch.equal(got._values().cpu(), joined._values())
    else:
        assert got.is_coalesced() == (x if x._nnz() else y if y._nnz() else got).is_coalesced()


@given(data=st.data(), way=st.sampled_from(["+=", "out="]))
def test_a_sum_is_merged_before_it_is_rounded(devices, data, way):
    """A wide tensor added to a narrow one."""
    device = data.draw(st.sampled_from(devices))
    x, y = (data.draw(coo(torch.float32, False)) for _ in range(2))
    narrow = x.to(torch.float16)
    out = narrow.to(device)
    if way == "+=":
        out += y.to(device)
    else:
        torch.add(x.to(device), y.to(device), out=out)
    assert (out.device, out.dtype) == (device, torch.float16)
    assert torch.equal(out.cpu().to_dense(), (x.to_dense() + y.to_dense()).half())
    if x._nnz() and y._nnz():
        places = torch.cat((x._indices(), y._indices()), 1)
        assert torch.equal(out._indices().cpu(), places.unique(dim=1))
