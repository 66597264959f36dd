"""Norms, as on CUDA: what they keep for their backward passes, and dtypes of their parameters."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

aten = torch.ops.aten
DTYPES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])
EPS = 1e-5


def numbers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator) / 4


def kept_in(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


@given(dtype=DTYPES, rows=st.integers(1, 3), size=st.integers(1, 5), slot=st.integers(0, 7))
def test_a_layer_norm_keeps_floats(devices, dtype, rows, size, slot):
    x = numbers(rows, size).to(dtype).to(devices[slot % len(devices)])
    _, mean, rstd = aten.native_layer_norm.default(x, [size], None, None, EPS)
    wide = x.cpu().to(kept_in(dtype))
    assert mean.dtype == rstd.dtype == kept_in(dtype)
    assert mean.shape == rstd.shape == (rows, 1)
    torch.testing.assert_close(mean.cpu(), wide.mean(1, keepdim=True))
    var = wide.var(1, keepdim=True, correction=0)
    torch.testing.assert_close(rstd.cpu(), (var + EPS).rsqrt())
    x.requires_grad_()
    F.layer_norm(x, [size]).sum().backward()
    assert x.grad.dtype == dtype


@given(dtype=DTYPES, trains=st.booleans(), dims=st.integers(0, 2), slot=st.integers(0, 7))
def test_a_batch_norm_keeps_floats_of_each_channel(devices, dtype, trains, dims, slot):
    """Also when it does not train: the running statistics then."""
    device = devices[slot % len(devices)]
    x = numbers(3, 4, *[2] * dims).to(dtype).to(device)
    mean, var = (numbers(4, seed=seed).abs().to(dtype).to(device) for seed in (1, 2))
    call = aten.native_batch_norm.default
    _, kept, invstd = call(x, None, None, mean.clone(), var.clone(), trains, 0.1, EPS)
    assert kept.dtype == invstd.dtype == kept_in(dtype)
    assert kept.shape == invstd.shape == (4,)
    if trains:
        wide = x.cpu().to(kept_in(dtype)).transpose(0, 1).flatten(1)
        expected = wide.mean(1), (wide.var(1, correction=0) + EPS).rsqrt()
    else:
        expected = (mean.to(kept.dtype).cpu(), (var.to(kept.dtype).cpu() + EPS).rsqrt())
    torch.testing.assert_close(kept.cpu(), expected[0])
    torch.testing.assert_close(invstd.cpu(), expected[1])
    x.requires_grad_()
    F.batch_norm(x, mean, var, training=trains).sum().backward()
    assert x.grad.dtype == dtype
    update = aten._batch_norm_with_update.default
    weight = torch.ones_like(mean)
    update(x, weight, weight, mean, var, 0.1, EPS)[0].sum().backward()  # by batch_norm_backward


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("running", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("with_weight", [True, False])
def test_running_statistics_may_have_another_dtype(devices, dtype, running, with_weight):
    if running == torch.float64 and dtype != torch.float64:
        pytest.skip("more digits than the kernel computes with")
    device = devices[-1]
    if device.type == "cuda" and running != dtype == torch.float64:
        pytest.skip("CUDA takes the memory of these statistics for float64")
    x = numbers(3, 4, 2).to(dtype).to(device)
    weight = torch.full((4,), 2.0, dtype=dtype, device=device) if with_weight else None
    mean, var = (torch.zeros(4, dtype=running, device=device) for _ in range(2))
    found = F.batch_norm(x, mean, var, weight, training=True, momentum=1.0)
    assert found.dtype == dtype
    assert mean.dtype == var.dtype == running
    expected = x.double().mean((0, 2)).cpu()
    torch.testing.assert_close(mean.cpu().double(), expected, rtol=2**-7, atol=2**-7)


def test_a_norm_without_statistics_trains(devices):
    x = torch.ones(2, 3, device=devices[-1])
    with pytest.raises(RuntimeError, match="Expected has_running_mean to be true"):
        aten.native_batch_norm.default(x, None, None, None, None, False, 0.1, EPS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_parameters_have_the_dtype_of_the_input(devices, dtype):
    x = torch.ones(2, 4, device=devices[-1], dtype=torch.float64)
    weight = torch.ones(4, device=devices[-1], dtype=dtype)
    name = {torch.float16: "Half", torch.float32: "Float"}[dtype]
    words = f"expected scalar type Double but found {name}"
    with pytest.raises(RuntimeError, match=words):
        F.layer_norm(x, (4,), weight)
    with pytest.raises(RuntimeError, match=words):
        F.batch_norm(x, None, None, weight, training=True)


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
    y = F.batch_norm(x, mean, var, weight, bias, training)
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
