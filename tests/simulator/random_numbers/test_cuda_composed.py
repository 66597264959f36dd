"""Dropout of channels, alpha dropout, attention: what PyTorch makes of other draws.

CUDA draws their masks by the kernels of `bernoulli_` and dropout; PyTorch's own arithmetic around
them is done here in plain steps, on numbers of tests/support/cuda_draws.py.
"""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from simgpu._core import world
from simgpu._random import layout
from tests.support import cuda_draws

seeds = st.integers(0, 2**64 - 1)
gpus = st.tuples(st.integers(1, 2), st.sampled_from([256, 512]))
offsets = st.integers(0, 2**40).map(lambda place: 4 * place)
chances = st.sampled_from([0.1, 0.5, 0.8])


def start(device, gpu, seed, offset):
    """Let the device be this GPU, with its generator at this point."""
    world.device(device.index).resident_threads = layout.resident_threads(*gpu)
    torch.simgpu.default_generators[0].manual_seed(seed).set_offset(offset)


def kept(numel, gpu, seed, offset, p):
    """What `bernoulli_(1 - p)` leaves, by the kernel of uniform numbers."""
    units = cuda_draws.grid_stride(numel, 4, gpu, seed, offset, cuda_draws.four_floats)
    return torch.tensor([unit < cuda_draws.to_float(1 - p) for unit in units])


@given(rows=st.integers(1, 40), channels=st.integers(1, 20), gpu=gpus, seed=seeds, offset=offsets,
       p=chances)  # fmt: skip
def test_feature_dropout(simulated, rows, channels, gpu, seed, offset, p):
    """Whole channels: one toss for each."""
    start(simulated[0], gpu, seed, offset)
    x = torch.ones(rows, channels, 2, 3, device=simulated[0])
    drawn = F.dropout2d(x, p).cpu()
    mask = kept(rows * channels, gpu, seed, offset, p).view(rows, channels, 1, 1)
    expected = mask.float().div(1 - p).expand_as(drawn)
    assert torch.equal(drawn, expected)
    moved = torch.simgpu.default_generators[0].get_offset() - offset
    assert moved == cuda_draws.policy(rows * channels, 4, gpu)[1]


@pytest.mark.parametrize("by_feature", [False, True])
@given(rows=st.integers(1, 12), width=st.integers(1, 30), gpu=gpus, seed=seeds, p=chances)
def test_alpha_dropout(simulated, by_feature, rows, width, gpu, seed, p):
    """What is dropped becomes a constant, and all is scaled, so that mean and variance stay."""
    start(simulated[0], gpu, seed, 8)
    x = torch.linspace(-2, 2, rows * width * 2).view(rows, width, 2)
    call = F.feature_alpha_dropout if by_feature else F.alpha_dropout
    drawn = call(x.to(simulated[0]), p, training=True).cpu()
    shape = (rows, width, 1) if by_feature else x.shape
    mask = kept(math.prod(shape), gpu, seed, 8, p).view(shape).expand_as(x)
    alpha = 1.7580993408473766
    a = 1 / math.sqrt((alpha * alpha * p + 1) * (1 - p))
    expected = torch.where(mask, x * a, torch.zeros(())) + a * alpha * p
    expected = torch.where(mask, expected, torch.full((), -alpha * a + a * alpha * p))
    torch.testing.assert_close(drawn, expected, rtol=1e-5, atol=1e-5)


@given(heads=st.integers(1, 3), length=st.integers(1, 12), gpu=gpus, seed=seeds, p=chances)
def test_attention_in_steps(simulated, heads, length, gpu, seed, p):
    """The weights are dropped by the kernel of dropout, as CUDA's math path does."""
    start(simulated[0], gpu, seed, 4)
    shape = 2, heads, length, 4
    query = torch.zeros(shape)
    value = torch.ones(shape)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        drawn = F.scaled_dot_product_attention(
            query.to(simulated[0]), query.to(simulated[0]), value.to(simulated[0]), dropout_p=p
        ).cpu()
    numel = 2 * heads * length * length
    at_once = 4 if numel % 4 == 0 else 2 if numel % 2 == 0 else 1
    if at_once > 1:
        words = cuda_draws.side_by_side(numel, at_once, gpu, seed, 4)
    else:
        words = cuda_draws.grid_stride(numel, 4, gpu, seed, 4, cuda_draws.four_words)
    keep = cuda_draws.to_float(1 - p)
    mask = torch.tensor([cuda_draws.unit_float(word) < keep for word in words])
    weights = mask.view(2, heads, length, length).float() / keep / length
    torch.testing.assert_close(drawn, weights.sum(-1, keepdim=True).expand(shape))


@given(numel=st.integers(1, 40) | st.integers(200, 2500), gpu=gpus, seed=seeds, offset=offsets)
def test_log_normal_doubles(simulated, numel, gpu, seed, offset):
    start(simulated[0], gpu, seed, offset)
    drawn = torch.empty(numel, dtype=torch.float64, device=simulated[0]).log_normal_(0.5, 0.25)
    normals = cuda_draws.grid_stride(numel, 2, gpu, seed, offset, cuda_draws.two_normals)
    expected = torch.tensor(normals, dtype=torch.float64).mul(0.25).add(0.5).exp()
    torch.testing.assert_close(drawn.cpu(), expected, rtol=1e-12, atol=0)


@given(rows=st.integers(1, 3), categories=st.integers(2, 30), data=st.data(), gpu=gpus, seed=seeds)
def test_multinomial_without_replacement(simulated, rows, categories, data, gpu, seed):
    """The greatest of weight over an exponential number, from the greatest on."""
    samples = data.draw(st.integers(2, categories))
    weights = torch.rand(rows, categories, generator=torch.Generator().manual_seed(seed))
    weights.clamp_(min=0.01)
    start(simulated[0], gpu, seed, 12)
    drawn = torch.multinomial(weights.to(simulated[0]), samples).tolist()
    units = cuda_draws.grid_stride(rows * categories, 4, gpu, seed, 12, cuda_draws.four_floats)
    for row in range(rows):
        scores = [
            weight.item() / max(-math.log(unit), 2**-24)
            for weight, unit in zip(
                weights[row], units[row * categories : (row + 1) * categories], strict=True
            )
        ]
        assert len(set(drawn[row])) == samples
        rest = sorted(scores, reverse=True)
        for place, found in enumerate(drawn[row]):
            assert scores[found] == pytest.approx(rest[place], rel=1e-4)
