"""Dtypes that newer releases have on CUDA and not on the CPU: computed in wider ones, and rounded.

Releases that lack them on CUDA too are not distinguished: none says what its kernels for CUDA have.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

NARROW = [
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex32),
]
HALVES = st.sampled_from([torch.float16, torch.bfloat16])


MOVED = {
    "flip": lambda x, index, _: x.flip(0),
    "gather": lambda x, index, _: x.gather(0, index),
    "gather, out=": lambda x, index, _: torch.gather(x, 0, index, out=x.new_empty(2)),
    "scatter": lambda x, index, source: x.scatter(0, index, source),
    "scatter_": lambda x, index, source: x.clone()[:, None].scatter_(
        0, index[:, None], source[:, None]
    ),
    "scatter, out=": lambda x, index, source: torch.scatter(
        x, 0, index, source, out=x.new_empty(0)
    ),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", MOVED)
@given(
    dtype=st.sampled_from(NARROW),
    slots=st.permutations(range(5)),
    count=st.integers(1, 5),
    data=st.data(),
)
def test_numbers_are_moved_as_they_are(simulated, name, dtype, slots, count, data):
    """Bit for bit, which no number in between would keep: there are NaN of many kinds."""
    size = dtype.itemsize
    bits = st.binary(min_size=5 * size, max_size=5 * size)
    x, source = (
        torch.tensor(list(data.draw(bits)), dtype=torch.uint8).view(dtype) for _ in range(2)
    )
    index = torch.tensor(slots[:count], dtype=torch.int64)
    place = simulated[1]
    got = MOVED[name](x.to(place), index.to(place), source.to(place))
    x, source = (each.view(torch.uint8).view(5, size) for each in (x, source))
    expected = MOVED[name.strip("_").partition(",")[0]](x, index[:, None].expand(-1, size), source)
    assert (got.device, got.dtype) == (place, dtype)
    assert torch.equal(got.cpu().flatten().view(torch.uint8), expected.flatten())


FILLED = {
    "scatter": lambda x, index, number: x.scatter(0, index, number),
    "scatter_": lambda x, index, number: x.clone().scatter_(0, index, number),
    "scatter, out=": lambda x, index, number: torch.scatter(
        x, 0, index, number, out=torch.empty_like(x)
    ),
}


@pytest.mark.parametrize("name", FILLED)
@given(
    dtype=st.sampled_from(NARROW[:4]),
    index=st.lists(st.integers(0, 4), max_size=4),
    number=st.floats(-500, 500) | st.integers(-500, 500) | st.booleans(),
)
def test_float8_takes_a_number_since_a_release(simulated, name, dtype, index, number):
    """As on CUDA: rounded as every number is that becomes float8, or refused."""
    place = simulated[1]
    x, where = torch.arange(5.0), torch.tensor(index, dtype=torch.int64)
    expected = x.scatter(0, where, float(number)).to(dtype).view(torch.uint8)
    narrow = x.to(dtype).to(place)
    if torch.__version__ < "2.15" and index:
        with pytest.raises(NotImplementedError, match="not implemented for 'Float8"):
            FILLED[name](narrow, where.to(place), number)
        return
    got = FILLED[name](narrow, where.to(place), number)
    assert (got.device, got.dtype) == (place, dtype)
    assert torch.equal(got.cpu().view(torch.uint8), expected)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@given(dtype=HALVES, seed=st.integers(0, 99), size=st.integers(1, 4))
def test_halves_are_multiplied_where_a_sparse_tensor_has_numbers(simulated, dtype, seed, size):
    random = torch.Generator().manual_seed(seed)
    mask, left, right = (
        torch.randint(-3, 4, (size, size), generator=random).to(dtype) for _ in range(3)
    )
    place = simulated[1]
    got = torch.sparse.sampled_addmm(
        mask.to(place).to_sparse_csr(), left.to(place), right.to(place)
    )
    assert (got.device, got.dtype) == (place, dtype)
    expected = (mask + (left @ right) * (mask != 0)).to(dtype)
    assert torch.equal(got.cpu().to_dense(), expected)


@given(dtype=st.sampled_from([torch.bool, torch.complex64]), size=st.integers(1, 4))
def test_errors_that_are_watched_speak_of_cuda_too(simulated, dtype, size):
    x = torch.ones(size, dtype=dtype, device=simulated[1])
    with simgpu.trace(), pytest.raises(NotImplementedError, match='"kthvalue_cuda" not impl'):
        torch.kthvalue(x, 1)
