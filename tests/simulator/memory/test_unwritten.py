"""Memory that nothing has written holds values that cannot pass for results."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._core.unwritten import fill_unwritten

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]


@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS, torch.bool], ids=str)
@given(size=st.integers(1, 4), step=st.integers(1, 3))
def test_unwritten_elements_are_no_numbers(dtype, size, step):
    memory = torch.zeros(size * step, dtype=dtype)
    fill_unwritten(memory[::step])
    if dtype.is_floating_point or dtype.is_complex:
        assert memory[::step].to(torch.complex64).isnan().all()
    elif dtype is torch.bool:
        assert memory[::step].all()
    else:
        minus_one = -1 % 2**16 if dtype is torch.uint16 else -1 % 2**8
        assert memory[::step].tolist() == [-1 if dtype.is_signed else minus_one] * size
    if step > 1:  # what is between them stays
        assert not memory[1::step].to(torch.complex64).any()


@given(nbytes=st.integers(0, 70))
def test_unwritten_bytes_have_all_bits_set(nbytes):
    memory = torch.zeros(nbytes, dtype=torch.uint8)
    fill_unwritten(memory.untyped_storage())
    assert memory.tolist() == [255] * nbytes
