"""torch.func, vmap and torch.compile over a device's tensors: the CPU's numbers, on the device."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.func import (
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)
from torch.nn import functional

# Forward-mode derivatives make PyTorch script its own decompositions, which it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def scalar(x):
    return (x.sin() * x**2).sum()


def vector(x):
    return (x.unsqueeze(0) * x.unsqueeze(1)).cumsum(1).exp().tril().sum(0)


def matrix(x):
    return torch.linalg.inv(x.outer(x) + torch.eye(x.shape[0], dtype=x.dtype, device=x.device))


def in_place(x):
    y = x.clone()
    y[0] = 2
    y.mul_(3).add_(x)
    return y


def attention(x):
    positions = x.outer(x + 1)[None, None]
    mask = torch.ones(x.numel(), x.numel(), dtype=torch.bool, device=x.device).tril()
    return functional.scaled_dot_product_attention(positions, positions + x, positions.sin(), mask)


# Each takes a vector and gives tensors.
TRANSFORMS = {
    "grad": grad(scalar),
    "grad_of_grad": grad(lambda x: grad(scalar)(x).square().sum()),
    "grad_and_value": grad_and_value(scalar),
    "grad_of_attention": grad(lambda x: attention(x).sin().sum()),
    "hessian": hessian(scalar),
    "jacrev": jacrev(vector),
    "jacfwd": jacfwd(vector),
    "jacobian_of_inverse": jacrev(matrix),
    "jvp": lambda x: jvp(vector, (x,), (x + 1,)),
    "vjp": lambda x: vjp(vector, x)[1](x + 1),
    "vmap": vmap(lambda x: x.sin() + 1),
    "vmap_of_matrices": lambda x: vmap(matrix)(torch.stack([x, x + 1, x - 1])),
    "vmap_over_columns": lambda x: vmap(vector, in_dims=1, out_dims=1)(x.outer(x + 1)),
    "vmap_in_chunks": lambda x: vmap(scalar, chunk_size=2)(torch.stack([x] * 5)),
    "vmap_of_grad": lambda x: vmap(grad(scalar))(x.outer(x)),
    "vmap_of_index": lambda x: vmap(lambda row, k: row[k])(
        x.outer(x), torch.arange(x.shape[0], device=x.device)
    ),
    "vmap_of_where": lambda x: vmap(lambda row: torch.where(row > 0, row, -row))(x.outer(x)),
    "functionalize": functionalize(in_place),
    "vmap_of_in_place": lambda x: vmap(in_place)(x.outer(x)),
}


def close(expected, got, device):
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (expected, got)), strict=True):
        assert other.device == device
        torch.testing.assert_close(other.detach().cpu(), one.detach())


def vectors(data, devices):
    x = torch.linspace(-0.5, 1, data.draw(st.integers(1, 4)), dtype=torch.float64)
    device = data.draw(st.sampled_from(devices))
    return x, x.to(device), device


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
@given(data=st.data())
def test_transforms(devices, name, data):
    here, there, device = vectors(data, devices)
    close(TRANSFORMS[name](here), TRANSFORMS[name](there), device)


@given(data=st.data(), seed=st.integers(0, 1000))
def test_randomness_within_vmap_comes_from_the_device(devices, data, seed):
    """The same for all elements, or different ones; the CPU's stream stays as it is."""
    device = data.draw(st.sampled_from(devices))
    rows = torch.ones(3, 64, device=device)
    before = torch.get_rng_state()
    torch.get_device_module(device).manual_seed_all(seed)
    same, different = (
        vmap(torch.nn.functional.dropout, randomness=kind)(rows) for kind in ("same", "different")
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])


def backward_by_method(x: torch.Tensor):
    y = (x * x * x).sum()
    y.backward()
    return x.grad


def backward_by_function(x: torch.Tensor):
    y = (x * x * x).sum()
    return torch.autograd.grad([y], [x])[0]


class LearnsByItself(nn.Module):
    def forward(self, x: torch.Tensor):
        y = (x * x * x).sum()
        y.backward()
        return x.grad


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="PyTorch scripts no code there")
@pytest.mark.parametrize("code", [backward_by_method, backward_by_function, LearnsByItself])
def test_scripted_code_passes_backward(devices, code):
    """It asks the engine in C++, by no function of Python's."""
    scripted = torch.jit.script(code() if isinstance(code, type) else code)
    for device in devices:
        x = torch.arange(3.0, device=device, requires_grad=True)
        there = scripted(x)
        assert there.device == device
        assert there.tolist() == [0.0, 3.0, 12.0]
