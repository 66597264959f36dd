"""Autocast regions: where casting starts and ends, and what is kept until then.

Nested regions, the casts of parameters, and recurrent and attention modules.
"""

import weakref
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.observe import plain

HALVES = (torch.float16, torch.bfloat16)
LOWER = st.sampled_from(HALVES)


@given(path=st.lists(st.tuples(st.booleans(), LOWER), max_size=4))
def test_regions_nest(devices, path):
    """The innermost region decides, and leaving it brings back the one around it."""
    x = torch.ones(2, 2, device=devices[0])

    def deeper(path, expected):
        assert (x @ x).dtype is expected
        if path:
            (enabled, lower), *rest = path
            with torch.autocast(devices[0].type, dtype=lower, enabled=enabled):
                deeper(rest, lower if enabled else torch.float32)
            assert (x @ x).dtype is expected

    deeper(path, torch.float32)


class Casts(TorchDispatchMode):
    """Counts the casts to another dtype."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def casts_of(weight, uses, **options):
    """How many casts `uses` products with `weight` take, in one outermost region."""
    x = weight.detach().to(torch.float16)
    with torch.autocast(weight.device.type, **options), Casts() as casts:
        for depth in range(uses):
            with torch.autocast(weight.device.type) if depth % 2 else nullcontext():
                (x @ weight).sum()
    return casts.count


@given(data=st.data(), uses=st.integers(1, 4))
def test_a_parameter_is_cast_once_per_region(devices, data, uses):
    device = data.draw(st.sampled_from(devices))
    weight = nn.Parameter(torch.ones(2, 2, device=device))
    assert casts_of(weight, uses) == 1
    assert casts_of(weight, uses) == 1
    assert casts_of(weight, 1, cache_enabled=False) == 1
    assert casts_of(weight.detach(), uses) == uses
    assert casts_of(weight * 1, uses) == uses
    view = weight.detach()[:].requires_grad_()
    assert casts_of(view, uses) == uses
    half = weight.detach().bfloat16().requires_grad_()
    assert casts_of(half, uses) == uses


def test_without_the_cache_every_use_casts(devices):
    weight = nn.Parameter(torch.ones(2, 2, device=devices[0]))
    x = torch.ones(2, 2, device=devices[0], dtype=torch.float16)
    with torch.autocast(devices[0].type, cache_enabled=False), Casts() as casts:
        for _ in range(3):
            x @ weight
    assert casts.count == 3


@pytest.mark.parametrize("where", ["device", "cpu"])
def test_region_sees_an_optimizer_step(devices, where):
    """On devices, and as ever on the CPU."""
    device = torch.device("cpu") if where == "cpu" else devices[0]
    weight = nn.Parameter(torch.ones(2, 2, device=device))
    for step in range(1, 4):
        with torch.autocast(device.type):
            product = weight.detach() @ weight
        assert plain(product.detach()) == plain(torch.full((2, 2), 2.0 * step * step))
        with torch.no_grad():
            weight += 1


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_casts_without_gradients_are_not_used_in_training(devices, without_gradients):
    weight = nn.Parameter(torch.ones(2, 2, device=devices[0]))
    x = torch.ones(2, 2, device=devices[0], requires_grad=True)
    with torch.autocast(devices[0].type):
        with without_gradients():
            x @ weight
        y = x @ weight
    y.sum().backward()
    assert plain(x.grad) == plain(weight.grad) == [[2.0, 2.0], [2.0, 2.0]]


def test_regions_keep_nothing_alive(devices, no_collector):
    weight = nn.Parameter(torch.ones(2, 2, device=devices[0]))
    gone = weakref.ref(weight)
    held = torch.get_device_module(devices[0]).memory_allocated(devices[0])
    with torch.autocast(devices[0].type):
        (weight @ weight).exp()
    assert torch.get_device_module(devices[0]).memory_allocated(devices[0]) == held
    with pytest.raises(KeyError), torch.autocast(devices[0].type):
        raise KeyError(float((weight @ weight).detach()[0, 0]))
    assert torch.get_device_module(devices[0]).memory_allocated(devices[0]) == held
    del weight
    assert gone() is None


class Product(torch.autograd.Function):
    """A product that remembers the dtypes that its two passes computed in."""

    seen: tuple = ()

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        y = x @ w
        Product.seen = (y.dtype,)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        Product.seen += ((x.float() @ w.float()).dtype,)
        return grad @ w.to(grad.dtype).t(), x.to(grad.dtype).t() @ grad


@given(lower=LOWER, train=st.booleans(), half_input=st.booleans())
def test_attention_is_cast_in_training_and_in_evaluation(devices, lower, train, half_input):
    """The fused paths of evaluation, which autocast cannot see into, are not taken."""
    device = devices[-1]
    attention = nn.MultiheadAttention(4, 2, batch_first=True).to(device).train(train)
    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True).to(device).train(train)
    x = torch.ones(2, 3, 4, device=device, dtype=lower if half_input else torch.float32)
    with torch.no_grad(), torch.autocast(device.type, dtype=lower):
        out, weights = attention(x, x, x)
        assert (out.dtype, weights.dtype) == (lower, torch.float32)
        assert layer(x).dtype is torch.float32
    assert torch.backends.mha.get_fastpath_enabled()
