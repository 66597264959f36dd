"""What is printed of a tensor does not depend on whether its devices are still there."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64]


@given(
    shape=st.lists(st.integers(0, 3), max_size=3) | st.just([1001]),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(["plain", "parameter", "transposed"]),
    now=st.sampled_from(["no devices", "fewer devices"]),
)
def test_a_tensor_that_has_outlived_its_device_is_printed(shape, dtype, kind, now):
    with simgpu.devices(2) as (_, device):
        x = torch.ones(shape, dtype=dtype, device=device)
        if kind == "parameter":
            x = torch.nn.Parameter(x, requires_grad=dtype.is_floating_point)
        elif kind == "transposed":
            x = x.permute(tuple(range(x.dim()))[::-1])
        printed = repr(x)
    if now == "no devices":
        assert repr(x) == printed
    else:
        with simgpu.devices(1):
            assert repr(x) == printed
