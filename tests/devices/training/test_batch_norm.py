"""Batch norm whose parameters are halves and whose running statistics are floats."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

NAMES = {torch.float16: "Half", torch.bfloat16: "BFloat16"}
HALVES = st.sampled_from(sorted(NAMES, key=str))
PLACES = {  # of channels: next to each other, or not
    "rows": (lambda x: x.flatten(1)[:, :3].contiguous(), True),
    "channels last": (lambda x: x.contiguous(memory_format=torch.channels_last), True),
    "pixels": (lambda x: x[:, :, :1, :1].contiguous(), True),
    "images": (lambda x: x, False),
}


def normed(x, training, affine, cast):
    """The result, and what else is written: statistics in place, and gradients of leaves."""
    numbers = torch.tensor([[1.0, 0.5, -2.0], [0.0, 0.25, 1.0]])
    weight, bias = (row.to(x.device, cast).requires_grad_(affine) for row in numbers)
    mean, var = torch.full((2, 3), 0.5, device=x.device)
    x = x.clone().requires_grad_()
    y = functional.batch_norm(x, mean, var, weight, bias, training)
    return y, (mean, var), (x, weight, bias) if affine else (x,)


@pytest.mark.parametrize("place", PLACES)
@given(
    data=st.data(),
    dtype=HALVES,
    training=st.booleans(),
    affine=st.booleans(),
    rows=st.integers(2, 4),
)
def test_halves_are_normed_by_floats(devices, place, data, dtype, training, affine, rows):
    """As with parameters that are floats; images have no backward pass, as on CUDA."""
    device = data.draw(st.sampled_from(devices))
    make, together = PLACES[place]
    x = make(torch.arange(rows * 12.0).view(rows, 3, 2, 2).sin().to(device, dtype))
    y, written, leaves = normed(x, training, affine, dtype)
    expected, to_be_written, known = normed(x, training, affine, torch.float32)
    assert y.dtype == dtype
    torch.testing.assert_close((y, *written), (expected, *to_be_written))
    if not together and (training or affine):
        with pytest.raises(RuntimeError, match=f"running_mean to have type {NAMES[dtype]} but got"):
            y.sum().backward()
        return
    factors = torch.arange(y.numel(), device=device).view(y.shape)
    for each in (y, expected):
        (each * factors).sum().backward()
    # A GPU sums over a channel in any order, and may do so after rounding to halves.
    most = torch.finfo(dtype).eps * factors.sum().item() / 3
    bound = {"rtol": 2**-8, "atol": most} if device.type == "cuda" else {}
    for one, other in zip(leaves, known, strict=True):
        torch.testing.assert_close(one.grad, other.grad.to(dtype), **bound)
