"""Attention on simulated devices: one kernel where CUDA has one, its steps elsewhere. Dropout.

tests/cuda/test_attention_operators.py compares the numbers.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import simgpu
from simgpu._ops.dtypes import name_of

FLASH = "_scaled_dot_product_flash_attention"
EFFICIENT = "_scaled_dot_product_efficient_attention"
CUDNN = "_scaled_dot_product_cudnn_attention"


def ops_of(query, **options):
    with simgpu.trace() as trace:
        scaled_dot_product_attention(query, query, query, **options)
    return {record.op for record in trace}


def test_attention_is_fused_in_inference_mode_and_under_autocast(simulated):
    query = torch.randn(2, 2, 3, 8, device=simulated[1])
    with torch.inference_mode():
        assert ops_of(query.clone()) == {EFFICIENT}
    with torch.autocast("simgpu", dtype=torch.bfloat16):
        assert scaled_dot_product_attention(query, query, query).dtype == torch.bfloat16
        assert CUDNN in ops_of(query)


def test_a_program_chooses_the_kernel(simulated, monkeypatch):
    query = torch.randn(2, 2, 3, 8, device=simulated[1]).half()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        assert ops_of(query) == {FLASH}
        with (
            pytest.warns(UserWarning, match="kernel not used because|dimensional|disabled"),
            pytest.raises(RuntimeError, match="No available kernel"),
        ):
            ops_of(query[0, 0])
    for allowed, operator in (
        (SDPBackend.EFFICIENT_ATTENTION, EFFICIENT),
        (SDPBackend.CUDNN_ATTENTION, CUDNN),
        ([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], FLASH),
    ):
        with sdpa_kernel(allowed):
            assert ops_of(query) == {operator}
    with sdpa_kernel(SDPBackend.MATH):
        assert "_safe_softmax" in ops_of(query)
    order = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(order, set_priority=True):
        assert ops_of(query) == {EFFICIENT}
    with (
        sdpa_kernel(SDPBackend.OVERRIDEABLE),
        pytest.raises(RuntimeError, match="No viable backend"),
    ):
        ops_of(query)
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert ops_of(query) == {FLASH}


def test_fused_attention_has_no_second_derivative_as_on_cuda(simulated):
    query = torch.randn(2, 2, 3, 4, device=simulated[1], requires_grad=True)
    result = scaled_dot_product_attention(query, query, query)
    (grad,) = torch.autograd.grad(result.sin().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match=f"{EFFICIENT}_backward is not implemented"):
        grad.sum().backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # as on CUDA
@pytest.mark.parametrize("outer", [lambda f: f, torch.func.grad], ids=["alone", "of grad"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_vmap_of_attention_is_attention_row_by_row(simulated, outer, dtype):
    def scalar(x):
        return scaled_dot_product_attention(x, x.cos(), x.sin()).sin().sum()

    x = torch.randn(3, 2, 2, 3, 4, dtype=dtype)
    got = torch.vmap(outer(scalar))(x.to(simulated[1]))
    expected = torch.stack([outer(scalar)(row) for row in x])
    torch.testing.assert_close(got.cpu(), expected)


def test_attention_of_unlike_tensors_raises(simulated):
    query = torch.randn(2, 2, 3, 4, device=simulated[1])
    for other in (query.cpu(), query.to(simulated[0])):
        with pytest.raises(RuntimeError, match=f"same device type.* key.device: {other.device}"):
            scaled_dot_product_attention(query, other, query)
        with pytest.raises(RuntimeError, match=f"attn_bias is on {other.device}, .*efficient"):
            scaled_dot_product_attention(query, query, query, other[0, 0, :, :3])
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        scaled_dot_product_attention(query, query.double(), query)
    with pytest.raises(RuntimeError, match=r"lengths of key and value.*key \(2, 2, 1, 4\)"):
        scaled_dot_product_attention(query, query[:, :, :1], query)
    with pytest.raises(RuntimeError, match="needs heads in key and value"):
        scaled_dot_product_attention(query, query[:, :0], query[:, :0], enable_gqa=True)
    assert scaled_dot_product_attention(*[query[:, :0]] * 3).shape == (2, 0, 3, 4)


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
