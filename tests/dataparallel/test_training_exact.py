"""k steps of SGD and of Adam on many devices are k steps on one, bit for bit, for every network.

`tests/support/training.py` says why the numbers are exact.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from dataparallel import DataParallel
from tests.support import strategies
from tests.support.observe import plain
from tests.support.training import (
    OPTIMIZERS,
    check_training,
    exact,
    few,
    linear_loss,
    trained,
)


def layer(out: int = 4, bias: bool = True) -> nn.Linear:
    return nn.Linear(4, out, bias=bias, dtype=torch.float64)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layer(), layer()
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Frozen(nn.Module):
    """A layer that does not learn below one that does, of which one bias does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = layer(), layer(), layer()
        self.first.requires_grad_(False)
        self.second.bias.requires_grad_(False)

    def forward(self, x):
        return self.third(torch.relu(self.second(self.first(x))))


class LearnedBuffer(nn.Module):
    """A buffer that requires grad, next to one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = layer()
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64).requires_grad_())
        self.register_buffer("shift", torch.ones(4, dtype=torch.float64))

    def forward(self, x):
        return self.linear(x) * self.scale + self.shift


class Listed(nn.Module):
    """Parameters in a ParameterList and a ParameterDict, found by iterating over them."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.ParameterList(
            [nn.Parameter(torch.ones(4, dtype=torch.float64)) for _ in range(3)]
        )
        self.named = nn.ParameterDict(
            {key: nn.Parameter(torch.ones(4, dtype=torch.float64)) for key in "ab"}
        )

    def forward(self, x):
        for factor in self.factors:
            x = x * factor
        return x + sum(self.named[key] for key in sorted(self.named))


class Complex(nn.Module):
    """A complex weight after an odd number of real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.real = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.weight = nn.Parameter(torch.ones(4, dtype=torch.complex128))

    def forward(self, x):
        rotated = torch.view_as_real(x * self.weight)
        return rotated.flatten(1) * self.real.sum()


class Checkpointed(nn.Module):
    """Its inner layers run again in backward, in whatever thread that is."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.inner = layer(), nn.Sequential(layer(), nn.ReLU(), layer())

    def forward(self, x):
        return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)


class Empty(nn.Module):
    """Has no parameters of its own, and submodules that have none."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.ModuleList()
        self.nobody = nn.ModuleDict()
        self.body = nn.Sequential(nn.Identity(), layer(), nn.Sequential())

    def forward(self, x):
        return self.body(x)


NETS = {
    "plain": lambda: nn.Sequential(layer(), nn.ReLU(), layer(2)),
    "tied": Tied,
    "frozen": Frozen,
    "learned buffer": LearnedBuffer,
    "lists": Listed,
    "complex": Complex,
    "checkpoint": lambda: Checkpointed(False),
    "reentrant checkpoint": lambda: Checkpointed(True),
    "empty submodules": Empty,
}


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("name", NETS)
@few
@given(data=st.data())
def test_training_is_that_of_one_device(devices, name, optimizer, data):
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    net = check_training(NETS[name], targets, optimizer, data.draw(st.integers(1, 3)))
    if name == "tied":
        assert net.second.weight is net.first.weight
    if name == "frozen":
        assert net.first.weight.grad is None
        assert net.second.bias.grad is None


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@few
@given(data=st.data(), steps=st.integers(1, 3))
def test_sparse_gradients_stay_sparse(devices, optimizer, data, steps):
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    sparse = optimizer != "Adam"  # which takes no sparse gradients

    def make():
        return nn.Embedding(7, 3, sparse=sparse, dtype=torch.float64)

    def loss_of(model, x):
        return linear_loss(model, x.long() % 7)

    net = check_training(make, targets, optimizer, steps, loss_of=loss_of)
    assert net.weight.grad.is_sparse == sparse


@few
@given(data=st.data(), accumulate=st.integers(2, 4), steps=st.integers(1, 2))
def test_gradients_may_be_accumulated(devices, data, accumulate, steps):
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    check_training(NETS["plain"], targets, "SGD", steps, accumulate=accumulate)


@few
@given(data=st.data(), optimizer=st.sampled_from(("SGD", "Adam")), steps=st.integers(1, 2))
def test_a_gradient_penalty_is_differentiated_twice(devices, data, optimizer, steps):
    """The loss holds the square of a gradient, by inputs and by parameters."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))

    def loss_of(model, x):
        x = x.requires_grad_()
        loss = linear_loss(model, x)
        leaves = (x, *model.parameters())
        first = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        return loss + sum((each**2).sum() for each in first if each is not None) / 64

    def make():
        net = nn.Sequential(layer(bias=False), nn.ReLU(), layer(2, bias=False))
        net.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
        return net

    check_training(make, targets, optimizer, steps, loss_of=loss_of)


@few
@given(data=st.data(), steps=st.integers(1, 2))
def test_blocks_of_a_network_may_be_parallel(devices, data, steps):
    """A DataParallel within a module that is none, as in PyTorch's tutorials."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    nets = [exact(nn.Sequential(layer(), nn.ReLU(), Tied(), layer(2)), targets[0])
            for _ in range(2)]  # fmt: skip
    expected = trained(nets[0], nets[0], "SGD", steps)
    blocks = nn.Sequential(
        DataParallel(nets[1][0], targets), nets[1][1], DataParallel(nets[1][2], targets), nets[1][3]
    )
    assert trained(nets[1], blocks, "SGD", steps) == expected


class Flexible(nn.Module):
    """Takes its batch as it comes, or none at all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = layer()

    def forward(self, x=None, *, scale=1, extra=None, **more):
        assert not more
        if x is None:
            return self.linear.weight.sum(0, keepdim=True)
        return self.linear(x) * scale


CALLS = {
    "no inputs": lambda model, x: model(),
    "only keywords": lambda model, x: model(x=x, scale=2),
    "a keyword for each row": lambda model, x: model(x, scale=x),
    "an empty list": lambda model, x: model(x, extra=[]),
    "an empty dict": lambda model, x: model(x, extra={}),
    "an empty tuple": lambda model, x: model(x, extra=()),
    "empty ones within others": lambda model, x: model(x, extra=[(), {"a": []}, None]),
    "no rows": lambda model, x: model(x[:0]),
    "one row": lambda model, x: model(x[:1]),
}


@pytest.mark.parametrize("name", CALLS)
@few
@given(data=st.data(), optimizer=st.sampled_from(("SGD", "Adam")))
def test_any_call_trains_as_on_one_device(devices, name, data, optimizer):
    targets = data.draw(strategies.device_lists(devices, min_size=2))

    def loss_of(model, x):
        return linear_loss(lambda rows: CALLS[name](model, rows), x)

    check_training(Flexible, targets, optimizer, 2, loss_of=loss_of)


@few
@given(data=st.data())
def test_only_empty_containers_call_every_replica(devices, data):
    """Nothing to cut: what the replicas give is joined, one after the other."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))

    class Constant(Flexible):
        def forward(self, *args, **kwargs):
            assert (args, kwargs) == (([], {}), {"k": ()})
            return self.linear.weight

    net = exact(Constant(), targets[0])
    out = DataParallel(net, targets)([], {}, k=())
    assert plain(out) == plain(net.linear.weight.repeat(len(targets), 1))
