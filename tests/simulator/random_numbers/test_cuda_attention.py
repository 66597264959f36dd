"""Dropout of CUDA's fused kernels of attention: which weights they keep, and what they draw.

The masks are made once more in tests/support/cuda_draws.py. What cuDNN keeps is not known.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import simgpu
from tests.support import attention, cuda_draws

FLASH, EFFICIENT, CUDNN = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
seeds = st.integers(0, 2**64 - 1)
offsets = st.integers(0, 2**40).map(lambda place: 4 * place)
chances = st.sampled_from([0.0625, 0.25, 0.5, 0.8125])
lengths = st.integers(2, 40)


def case(dtype, batch, heads, rows, columns, seed):
    random = torch.Generator().manual_seed(seed % 2**32)
    shapes = (batch, heads, rows, 8), *[(batch, heads, columns, 8)] * 2
    tensors = [torch.randn(shape, generator=random).to(dtype) for shape in shapes]
    return attention.Case(*(tensor.requires_grad_() for tensor in tensors))


def dropped(case, kernel, p, seed, offset):
    """The output, its gradients, the gradient that they are by, and how far the generator moved."""
    there = case.moved("simgpu")
    generator = torch.simgpu.default_generators[0]
    generator.manual_seed(seed).set_offset(offset)
    with sdpa_kernel(kernel):
        out = scaled_dot_product_attention(there.query, there.key, there.value, dropout_p=p)
    moved = generator.get_offset() - offset
    grad = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    grads = torch.autograd.grad(out, there.leaves(), grad.to("simgpu"))
    assert generator.get_offset() - offset == moved  # the mask is made again of what was drawn
    return [each.cpu() for each in (out, *grads)], grad, moved


@given(batch=st.integers(1, 2), heads=st.integers(1, 3), rows=lengths, columns=lengths, seed=seeds,
       offset=offsets, p=chances)  # fmt: skip
def test_efficient_attention(simulated, batch, heads, rows, columns, seed, offset, p):
    """Each weight has a word of one thread, in their order."""
    whole = case(torch.float32, batch, heads, rows, columns, seed)
    got, grad, moved = dropped(whole, EFFICIENT, p, seed, offset)
    count = batch * heads * rows * columns
    words = cuda_draws.one_after_another(count, seed, offset)
    keep = torch.tensor([cuda_draws.unit_float(word) > p for word in words])
    keep = keep.view(batch, heads, rows, columns)
    attention.check(whole.with_dropout(keep, p), got, grad)
    assert moved == -(-count // 4) * 4


@given(batch=st.integers(1, 2), heads=st.integers(1, 3), rows=lengths, columns=lengths, seed=seeds,
       offset=offsets, p=chances)  # fmt: skip
def test_flash_attention(simulated, batch, heads, rows, columns, seed, offset, p):
    """Each weight has a byte of a warp that computes 16 rows and 32 columns."""
    whole = case(torch.float16, batch, heads, rows, columns, seed)
    got, grad, moved = dropped(whole, FLASH, p, seed, offset)
    most = math.floor((1 - p) * 255)
    keep = torch.tensor(
        [cuda_draws.flash_bytes(head, rows, columns, seed, offset) for head in range(batch * heads)]
    )
    attention.check(
        whole.with_dropout((keep <= most).view(batch, heads, rows, columns), p), got, grad
    )
    assert moved == batch * heads * 32


@pytest.mark.parametrize("rng", ["cuda", "host"])
@given(batch=st.integers(1, 2), heads=st.integers(1, 3), rows=lengths, columns=lengths, seed=seeds)
def test_cudnn_draws_a_number_for_each_weight(rng, batch, heads, rows, columns, seed):
    """And forward and backward pass drop the same, by whichever generator."""
    whole = case(torch.float32, batch, heads, rows, columns, seed)
    count = batch * heads * rows * columns
    with simgpu.devices(1, rng=rng), sdpa_kernel(CUDNN):
        generator = torch.simgpu.default_generators[0].manual_seed(seed)
        query, key, value = (part.detach().half().to("simgpu") for part in whole.leaves())
        value = torch.eye(columns, 8 * (-(-columns // 8)), device="simgpu").half()
        value = value.expand(batch, heads, *value.shape).requires_grad_()
        out = scaled_dot_product_attention(query, key, value, dropout_p=0.5)
        if rng == "cuda":
            assert generator.get_offset() == -(-count // 4) * 4
        (grad,) = torch.autograd.grad(out.sum(-2)[..., 0].sum(), value)
        # A weight that was dropped has no share in the gradient of its value.
        kept = out[..., :columns] != 0
        assert torch.equal(grad[..., 0] != 0, kept.any(-2))
        again = scaled_dot_product_attention(query, key, value, dropout_p=0.5)
        if count > 64:
            assert not torch.equal(again != 0, out != 0)
            assert kept.any()
            assert not kept.all()
