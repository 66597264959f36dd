"""Operators: what a device computes is what the CPU computes.

The inputs are integers that every dtype in use holds exactly, so most answers are exact on any
hardware and compared bit for bit; the operators that round are listed apart and compared with
torch's own tolerance for the dtype. Adding an operator is adding a line.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.support import strategies
from tests.support.observe import place, plain, values
from tests.support.worlds import few

EXACT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "rsub": lambda x, y: 3 - x,
    "mul": lambda x, y: x * y,
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "relu": lambda x, y: x.relu(),
    "clamp": lambda x, y: x.clamp(-2, 2),
    "where": lambda x, y: torch.where(x > y, x, y),
    "maximum": torch.maximum,
    "compare": lambda x, y: (x < y) | (x == y),
    "sum": lambda x, y: x.sum(),
    "sum_dim": lambda x, y: x.sum(0, keepdim=True),
    "max_dim": lambda x, y: x.max(1).values,
    "argmax": lambda x, y: x.argmax(1),
    "cumsum": lambda x, y: x.cumsum(0),
    "sort": lambda x, y: x.sort(0).values,
    "topk": lambda x, y: (x + torch.arange(x.shape[1], device=x.device) / 64).topk(2).values,
    "matmul": lambda x, y: x @ y.t(),
    "addmm": lambda x, y: torch.addmm(x[:, :1], x, y.t()),
    "bmm": lambda x, y: torch.bmm(x[None], y.t()[None]),
    "einsum": lambda x, y: torch.einsum("ij,kj->ik", x, y),
    "linear": lambda x, y: functional.linear(x, y, y[:, 0]),
    "conv1d": lambda x, y: (
        functional.conv1d(x[None], y[:, :, None][:2, :3], padding=0) if x.shape[0] == 3 else x
    ),
    "conv2d": lambda x, y: functional.conv2d(x[None, None], y[None, None, :2, :2], padding=1),
    "max_pool": lambda x, y: functional.max_pool2d(x[None], 2),
    "cat": lambda x, y: torch.cat([x, y], 1),
    "stack": lambda x, y: torch.stack([x, y]),
    "pad": lambda x, y: functional.pad(x, (1, 1)),
    "flip": lambda x, y: x.flip(0),
    "roll": lambda x, y: x.roll(1, 0),
    "repeat": lambda x, y: x.repeat(2, 1),
    "tril": lambda x, y: x.tril(),
    "index_select": lambda x, y: x.index_select(0, torch.tensor([1, 0], device=x.device)),
    "index": lambda x, y: x[torch.tensor([0, 2], device=x.device)],
    "mask": lambda x, y: x[x > 0],
    "gather": lambda x, y: x.gather(1, order(y)),
    "scatter_add": lambda x, y: torch.zeros_like(x).scatter_add(
        1, y.argsort(dim=1, stable=True), x
    ),
    "embedding": lambda x, y: functional.embedding(torch.tensor([[0, 1]], device=x.device), x),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 7),
    "nonzero": lambda x, y: x.nonzero(),
    "unique": lambda x, y: x.unique(),
    "in_place": lambda x, y: x.clone().add_(y).mul_(2).clamp_(min=-3),
    "setitem": lambda x, y: x.clone().index_put_((torch.tensor([1], device=x.device),), y[0]),
    "assign": lambda x, y: assigned(x, y),
    "out": lambda x, y: torch.add(x, y, out=torch.empty_like(x)),
    "out_resized": lambda x, y: torch.mul(x, y, out=torch.empty(0, device=x.device)),
    "type": lambda x, y: x.to(torch.int64) // 3,
    "foreach": lambda x, y: torch._foreach_add([x, y], [y, x])[1],
    "complex": lambda x, y: torch.view_as_real(torch.complex(x, y).conj() * 1j),
    "item": lambda x, y: x * x[0, 0].item(),
    "l1_loss": lambda x, y: functional.l1_loss(x, y, reduction="sum"),
}

# Their answers are booleans or indices, or torch has no derivative for them.
WITHOUT_GRADIENT = {
    *("argmax", "compare", "nonzero", "out", "out_resized", "type", "unique"),
}

ROUNDED = {
    "div": lambda x, y: x / 7,
    "exp": lambda x, y: (x / 8).exp(),
    "tanh": lambda x, y: x.tanh(),
    "gelu": lambda x, y: functional.gelu(x),
    "softmax": lambda x, y: x.softmax(1),
    "cross_entropy": lambda x, y: functional.cross_entropy(x, y.argmax(1)),
    "mse_loss": functional.mse_loss,
    "bce": lambda x, y: functional.binary_cross_entropy_with_logits(x, (y > 0).to(x.dtype)),
    "layer_norm": lambda x, y: functional.layer_norm(x, x.shape[1:]),
    "batch_norm": lambda x, y: functional.batch_norm(x, None, None, training=True),
    "group_norm": lambda x, y: functional.group_norm(x[None], 1),
    "var": lambda x, y: x.var(),
    "norm": lambda x, y: x.norm(),
    "interpolate": lambda x, y: functional.interpolate(x[None, None], scale_factor=2.0),
    "avg_pool": lambda x, y: functional.avg_pool2d(x[None], 3, stride=1),
    "attention": lambda x, y: functional.scaled_dot_product_attention(x[None], y[None], x[None]),
    "svd": lambda x, y: torch.linalg.svdvals(x),
    "solve": lambda x, y: torch.linalg.solve(
        x.t() @ x + 50 * torch.eye(x.shape[1], device=x.device), y.t()
    ),
    "std_mean": lambda x, y: torch.stack(torch.std_mean(x)),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
}

MODULES = {
    "conv_block": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2)
    ),
    "transposed": lambda: nn.ConvTranspose2d(1, 2, 2, stride=2),
    "lstm": lambda: nn.LSTM(4, 3, batch_first=True),
    "gru": lambda: nn.GRU(4, 3, batch_first=True),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
}


def order(x):
    return x.argsort(dim=1, stable=True)


def assigned(x, y):
    x = x.clone()
    x[0] = y[1]
    x[:, 1:] += 1
    return x


def inputs(data, devices):
    device = data.draw(st.sampled_from(devices))
    rows, columns = data.draw(st.integers(3, 6)), data.draw(st.integers(3, 6))
    seed = data.draw(st.integers(0, 1000))
    pair = [values((rows, columns), "float32", seed + k, span=17) for k in (0, 1)]
    return pair, [x.to(device) for x in pair], device


@pytest.mark.parametrize("name", sorted(EXACT))
@strategies.fewer_examples
@given(data=st.data())
def test_exact_operators(devices, name, data):
    here, there, device = inputs(data, devices)
    got = EXACT[name](*there)
    expected = EXACT[name](*here)
    assert got.device == device
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert plain(got) == plain(expected)


@pytest.mark.parametrize("name", sorted(ROUNDED))
@strategies.fewer_examples
@given(data=st.data())
def test_rounding_operators(devices, name, data):
    here, there, device = inputs(data, devices)
    got = ROUNDED[name](*there)
    assert got.device == device
    torch.testing.assert_close(got.cpu(), ROUNDED[name](*here), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(set(EXACT) - WITHOUT_GRADIENT))
@strategies.fewer_examples
@given(data=st.data())
def test_gradients_of_exact_operators(devices, name, data):
    here, there, device = inputs(data, devices)
    for pair in (here, there):
        for x in pair:
            x.requires_grad_()
    expected = EXACT[name](*here)
    expected.sum().backward()
    EXACT[name](*there).sum().backward()
    for one, other in zip(here, there, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            assert other.grad.device == device
            assert plain(other.grad) == plain(one.grad)


@pytest.mark.parametrize("name", sorted(MODULES))
@strategies.fewer_examples
@given(data=st.data(), seed=st.integers(0, 1000))
def test_modules_and_their_gradients(devices, name, data, seed):
    device = data.draw(st.sampled_from(devices))
    torch.manual_seed(seed)
    here, there = MODULES[name](), MODULES[name]()
    there.load_state_dict(here.state_dict())
    there.to(device)
    shape = (2, 1, 4, 4) if name in ("conv_block", "transposed") else (2, 5, 4)
    x = values(shape, "float32", seed, span=7) / 4
    outs = []
    for net in (here, there):
        out = net(x.to(next(net.parameters()).device))
        out = out[0] if isinstance(out, tuple) else out
        (out * out).sum().backward()
        outs.append(out)
    assert outs[1].device == device
    torch.testing.assert_close(outs[1].cpu(), outs[0], atol=1e-3, rtol=1e-3)
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), one.grad, atol=1e-3, rtol=1e-3)


@few
@given(pair=st.permutations(range(3)), rows=st.integers(1, 4))
def test_a_sparse_tensor_is_copied_from_anywhere_to_anywhere(devices, pair, rows):
    expected = torch.eye(4)[:rows] * torch.arange(1.0, 5.0)
    places = [place(pair[0], devices), torch.device("cpu"), place(pair[1], devices)]
    for source in places:
        x = expected.to(source).to_sparse()
        values = x._values().data_ptr()
        for target in places:
            y = torch.zeros(rows, 4, device=target).to_sparse()
            assert y.copy_(x) is y
            assert torch.equal(y.to_dense().cpu(), expected)
        assert torch.equal((x + x).to_dense().cpu(), expected * 2)
        assert x._values().data_ptr() == values  # what is only read stays where it is


IN_PLACE = {
    "one tensor": lambda x, y: x.exp_(),
    "two tensors": lambda x, y: x.add_(y),
    "a number": lambda x, y: x.mul_(2),
    "no tensor": lambda x, y: x.zero_(),
    "three tensors": lambda x, y: x.addcmul_(y, y),
}


@pytest.mark.parametrize("name", sorted(IN_PLACE))
def test_in_place_operators_take_no_memory(devices, name):
    device = devices[-1]
    module = torch.get_device_module(device)
    x, y = (torch.ones(3, device=device) for _ in range(2))
    before = module.memory_allocated(device)
    module.reset_peak_memory_stats(device)
    assert IN_PLACE[name](x, y) is x
    assert module.max_memory_allocated(device) == before
