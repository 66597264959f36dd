"""What is printed of a tensor does not depend on whether its devices are still there."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse (CSR|CSC|BSR|BSC) tensor support", "ignore:The PyTorch API of nested"
)

DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.bool]
KINDS = {
    "plain": lambda x: x,
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=x.is_floating_point()),
    "transposed": lambda x: x.permute(tuple(range(x.dim()))[::-1]),
    "complex": lambda x: x.to(torch.complex64),
    "conjugated": lambda x: torch.complex(x.float(), x.float()).conj(),
    "negated": lambda x: torch.complex(x.float(), x.float()).conj().imag,
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.float().reshape(1, -1).to_sparse_csr(),
    "nested": lambda x: torch.nested.as_nested_tensor([x.float(), x.float()]),
    "jagged": lambda x: torch.nested.as_nested_tensor([x[None], x[None]], layout=torch.jagged),
}


@given(
    shape=st.lists(st.integers(0, 3), max_size=3) | st.just([1001]),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(sorted(KINDS)),
    now=st.sampled_from(["no devices", "fewer devices"]),
)
def test_a_tensor_that_has_outlived_its_device_is_printed(shape, dtype, kind, now):
    with simgpu.devices(2) as (_, device):
        x = KINDS[kind](torch.randint(0, 3, shape, device=device).to(dtype))
        printed = repr(x)
    if now == "no devices":
        assert repr(x) == printed
    else:
        with simgpu.devices(1):
            assert repr(x) == printed


@given(size=st.integers(0, 4), kind=st.sampled_from(["coo", "csr", "nested", "plain"]))
def test_a_tensor_that_has_outlived_its_device_is_copied_to_the_host(size, kind):
    with simgpu.devices(1) as (device,):
        x = KINDS[kind](torch.ones(size, device=device))
        before = x.cpu()
    after = x.cpu()
    assert repr(after) == repr(before)
    assert after.device.type == "cpu"
