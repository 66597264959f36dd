"""Dtypes that newer releases have on CUDA and not on the CPU: computed in wider ones, and rounded.

Releases that lack them on CUDA too are not told apart: none says what its kernels for CUDA have.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

EIGHT_BITS = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
]
HALVES = st.sampled_from([torch.float16, torch.bfloat16])


@given(dtype=st.sampled_from(EIGHT_BITS), slots=st.permutations(range(5)), count=st.integers(0, 5))
def test_numbers_of_eight_bits_are_scattered_as_they_are(simulated, dtype, slots, count):
    x, source = (torch.linspace(start, 3, 5).to(dtype) for start in (-2, 1))
    index = torch.tensor(slots[:count], dtype=torch.int64)
    expected = x.float().scatter(0, index, source.float()).to(dtype)
    place = simulated[1]
    got = x.to(place).scatter(0, index.to(place), source.to(place))
    assert (got.device, got.dtype) == (place, dtype)
    assert torch.equal(got.cpu().view(torch.uint8), expected.view(torch.uint8))


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


def test_a_transform_of_bfloat16_is_one_of_floats(simulated):
    x = torch.linspace(-1, 1, 32).bfloat16()
    window = torch.ones(8).bfloat16()
    got = torch.stft(x.to(simulated[1]), 8, window=window.to(simulated[1]), return_complex=True)
    expected = torch.stft(x.float(), 8, window=window.float(), return_complex=True)
    assert torch.equal(got.cpu(), expected)


@given(dtype=st.sampled_from([torch.bool, torch.complex64]), size=st.integers(1, 4))
def test_errors_that_are_watched_speak_of_cuda_too(simulated, dtype, size):
    x = torch.ones(size, dtype=dtype, device=simulated[1])
    with simgpu.trace(), pytest.raises(NotImplementedError, match='"kthvalue_cuda" not impl'):
        torch.kthvalue(x, 1)
