"""Dropout on a simulated device: CUDA's products, bit for bit, with a mask drawn there."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._ops.dtypes import name_of


@given(
    data=st.data(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
    p=st.sampled_from([0.1, 0.3, 0.7, 1.0]),
    seed=st.integers(0, 1000),
)
def test_dropout_and_its_gradient_are_products_with_the_mask(simulated, data, dtype, p, seed):
    device = data.draw(st.sampled_from(simulated))
    torch.manual_seed(seed)
    x, grad = torch.randn(2, 5, 7).to(dtype)
    x[0, 0], grad[1, 1] = float("nan"), float("inf")
    leaf = x.to(device).requires_grad_()
    kept, mask = torch.native_dropout(leaf, p, True)
    assert mask.dtype == torch.bool
    scale = 0.0 if p == 1 else 1 / (1 - p)
    # As on CUDA, the scale is the inverse of a probability that is rounded to a float, but for
    # doubles; and what is dropped for certain is 0, whatever it was.
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    rounded = 1 / torch.tensor(1 - p, dtype=wide)
    expected = torch.zeros_like(x) if p == 1 else x.to(wide) * mask.cpu() * rounded
    expected = expected.to(dtype)
    torch.testing.assert_close(kept.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    (got,) = torch.autograd.grad(kept, leaf, grad.to(device))
    expected = (grad.to(wide) * mask.cpu() * torch.tensor(scale, dtype=wide)).to(dtype)
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@given(p=st.floats(0, 1, exclude_max=True))
def test_gradients_of_half_precision_are_rounded_once(simulated, dtype, p):
    """All of them: the scale is a float, as CUDA's kernel has it."""
    grad = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    scale = 1 / (1 - p)
    kept = torch.ones(2**16, dtype=torch.bool)
    got = torch.ops.aten.native_dropout_backward(
        grad.to(simulated[0]), kept.to(simulated[0]), scale
    )
    expected = (grad.float() * torch.tensor(scale)).to(dtype)
    torch.testing.assert_close(got.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.without("--async", reason="what its kernel checks is reported when it runs")
@given(dtype=st.sampled_from([torch.uint8, torch.float32, torch.int64, torch.float16]))
def test_dropout_refuses_a_mask_of_numbers(simulated, dtype):
    """As for CUDA's kernel; the CPU's takes numbers."""
    grad = torch.ones(3, device=simulated[0])
    with pytest.raises(RuntimeError, match=f"Mask should be Bool Scalar Type.*{dtype}"):
        torch.ops.aten.native_dropout_backward(grad, grad.to(dtype), 2.0)


@pytest.mark.without("--async", reason="what its kernel checks is reported when it runs")
@given(
    dtype=st.sampled_from([torch.int64, torch.uint8, torch.bool, torch.complex64]),
    backward=st.booleans(),
)
def test_only_real_numbers_are_dropped(simulated, dtype, backward):
    x = torch.ones(3, device=simulated[0]).to(dtype)
    state = torch.simgpu.get_rng_state(0)
    call, other = torch.native_dropout, (0.5, True)
    if backward:
        call, other = torch.ops.aten.native_dropout_backward, (x.bool(), 2.0)
    with pytest.raises(NotImplementedError, match=f"not implemented for '{name_of(dtype)}'"):
        call(x, *other)
    assert torch.equal(torch.simgpu.get_rng_state(0), state)
