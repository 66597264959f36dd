"""What norms keep for their backward passes, and the dtypes of their parameters, as on CUDA."""

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
