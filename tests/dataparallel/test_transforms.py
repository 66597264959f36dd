"""torch.func, forward-mode AD and torch.compile over DataParallel: the numbers of one device.

Data are small integers and the network is a polynomial, so every order of summation is exact.
"""

import functools
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)
from torch.utils._pytree import tree_leaves, tree_map

import dataparallel
from dataparallel import comm
from dataparallel._transfer.autograd import (
    Broadcast,
    Gather,
    NonDifferentiable,
    ReduceAddCoalesced,
    Scatter,
    apply,
)
from dataparallel._transfer.buckets import lay_out
from tests.support import strategies
from tests.support.observe import plain, values
from tests.support.training import exact, few

# Forward-mode derivatives make PyTorch script its own decompositions, which it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


class Polynomial(nn.Module):
    """Two layers with a square between them, the second without a bias, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.second = nn.Linear(3, 1, bias=False)
        self.register_buffer("offset", torch.tensor([2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).square()) + self.offset


def ones(tree):
    return tree_map(torch.ones_like, tree)


def dual(function, *primals):
    """The tangent of a function along ones, by PyTorch's own forward-mode levels."""
    with forward_ad.dual_level():
        duals = tree_map(lambda t: forward_ad.make_dual(t, torch.ones_like(t)), primals)
        return forward_ad.unpack_dual(function(*duals)).tangent


def dual_backward(function, x):
    """Forward mode over a graph that was recorded before its level began."""
    x = x.clone().requires_grad_()
    out = function(x)
    with forward_ad.dual_level():
        seed = forward_ad.make_dual(torch.ones_like(out), torch.full_like(out, 3))
        (found,) = torch.autograd.grad(out, x, seed)
        return forward_ad.unpack_dual(found).tangent


def batched_backward(function, *primals, create_graph=False):
    primals = tree_map(lambda t: t.clone().requires_grad_(), primals)
    out = function(*primals)
    seeds = torch.stack([torch.ones_like(out), torch.full_like(out, 2)])
    found = torch.autograd.grad(
        out, tree_leaves(primals), seeds, is_grads_batched=True, create_graph=create_graph,
        allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    if not create_graph:
        return found
    return torch.autograd.grad(sum(g.square().sum() for g in found), tree_leaves(primals))


def loss(function):
    return lambda *args: function(*args).square().sum()


def with_input(transform):
    """A transform of a function of one tensor, as one of a model and its input."""
    return lambda model, parameters, x: transform(functools.partial(model, parameters), x)


def with_parameters(transform):
    return lambda model, parameters, x: transform(lambda p: model(p, x), parameters)


def two(tree):
    return tree_map(lambda t: torch.stack([t, t + 1]), tree)


# Each is given a function of parameters and an input.
TRANSFORMS = {
    "jvp": with_input(lambda f, x: jvp(f, (x,), (ones(x),))),
    "vjp": with_input(lambda f, x: vjp(f, x)[1](f(x))),
    "grad": with_input(lambda f, x: grad(loss(f))(x)),
    "vmap": with_input(lambda f, x: vmap(f)(two(x))),
    "vmap to another dimension": with_input(lambda f, x: vmap(f, out_dims=1)(two(x))),
    "jacrev": with_input(lambda f, x: jacrev(f)(x)),
    "jacfwd": with_input(lambda f, x: jacfwd(f)(x)),
    "hessian": with_input(lambda f, x: hessian(loss(f))(x)),
    "jvp of grad": with_input(lambda f, x: jvp(grad(loss(f)), (x,), (ones(x),))),
    "functionalize": with_input(lambda f, x: functionalize(f)(x)),
    "dual numbers": with_input(dual),
    "dual numbers in backward": with_input(dual_backward),
    "batched backward": with_input(batched_backward),
    "parameters: jvp": with_parameters(lambda f, p: jvp(f, (p,), (ones(p),))),
    "parameters: grad": with_parameters(lambda f, p: grad(loss(f))(p)),
    "parameters: dual numbers": with_parameters(dual),
    "parameters: batched backward": with_parameters(batched_backward),
    "parameters: batched backward of backward": with_parameters(
        functools.partial(batched_backward, create_graph=True)
    ),
    "parameters: an ensemble": lambda model, p, x: vmap(model, in_dims=(0, None))(two(p), x),
    "parameters: gradients per sample": lambda model, p, x: vmap(
        grad(loss(model)), in_dims=(None, 0)
    )(p, two(x)),
}


def same(expected, got):
    for one, other in zip(*map(tree_leaves, (expected, got)), strict=True):
        assert one.device == other.device
        assert plain(one) == plain(other)


# Those in which a gradient of torch.func may pass from a device to another. PyTorch's engine tells
# the allocator of it, and finds no memory in what a level of torch.func wraps.
BETWEEN_DEVICES = {
    *("grad", "jacrev", "hessian", "jvp of grad", "parameters: grad"),
    *("batched backward", "parameters: batched backward", "parameters: gradients per sample"),
    "parameters: batched backward of backward",
}


def same_unless_refused(expected, compute, refused):
    """As `same`; where it may be `refused`, also PyTorch's own error will do."""
    try:
        got = compute()
    except NotImplementedError as error:
        if not (refused and str(error).startswith("Cannot access storage of ")):
            raise
    else:
        same(expected, got)


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
@few
@given(data=st.data(), frozen=st.booleans())
def test_transforms_of_a_parallel_module(devices, name, data, frozen):
    targets = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(targets), min_size=1, max_size=9))
    net = exact(Polynomial().double(), targets[0]).requires_grad_(not frozen)
    x = values((batch, 2), "float64", span=3).to(targets[0])
    model = dataparallel.DataParallel(net, targets)
    state = {name: tensor.detach() for name, tensor in net.named_parameters()}

    def single(parameters, x):
        return functional_call(net, parameters, (x,))

    def parallel(parameters, x):
        return functional_call(model, dataparallel.add_prefix(parameters), (x,))

    transform = TRANSFORMS[name]
    refused = name in BETWEEN_DEVICES and len(set(targets)) > 1
    expected = transform(single, state, x)
    same_unless_refused(expected, lambda: transform(parallel, state, x), refused)
    # Nothing of the transform is left for calls without one.
    same(net(x), model(x))


@given(data=st.data(), inside=st.booleans(), cached=st.booleans())
def test_parameters_unknown_to_the_transform(devices, data, inside, cached):
    """With and without grad mode, and copies that are kept between calls."""
    targets = data.draw(strategies.device_lists(devices))
    net = exact(Polynomial().double(), targets[0])
    x = values((2, 5, 2), "float64", span=3).to(targets[0])
    model = dataparallel.DataParallel(net, targets, cache_parameters=cached)
    with torch.no_grad():
        same(net(x[0]), model(x[0]))
    with torch.set_grad_enabled(inside):
        found = [vmap(each)(x) for each in (net, model)]
    same(*found)
    if inside:
        same(*(torch.autograd.grad(out.square().sum(), net.first.weight) for out in found))


@given(data=st.data(), batched=st.lists(st.booleans(), min_size=1, max_size=8))
def test_sums_of_batched_and_plain_tensors(devices, data, batched):
    """The sum so far may have fewer dimensions than what is added to it: plain, plain, batched."""
    targets = data.draw(strategies.device_lists(devices, min_size=len(batched)))
    batched = (batched * len(targets))[: len(targets)]
    x = values((3, 4), "float64", span=9)

    def total(row):
        parts = [row * (1 + k) if own else x[1] - k for k, own in enumerate(batched)]
        return comm.reduce_add(
            [p.to(to) for p, to in zip(parts, targets, strict=False)], targets[0]
        )

    same(torch.stack([total(row) for row in x]), vmap(total)(x))


def weighed(parts):
    return [k * part for k, part in enumerate(parts, 1)]


def reduced(x, targets):
    layout = lay_out([x, x])
    copies = apply(Broadcast, targets, NonDifferentiable(layout, ()), layout, x, x)
    return apply(ReduceAddCoalesced, targets, layout, *weighed(copies))


# Each transfer there and back, and the same on n copies or chunks without any transfer.
TRANSFERS = {
    "scatter, gather": (
        lambda x, to: dataparallel.gather(weighed(dataparallel.scatter(x, to)), to[0]),
        lambda x, n: torch.cat(weighed(x.chunk(n))),
    ),
    "comm.scatter, comm.gather": (
        lambda x, to: comm.gather(weighed(comm.scatter(x, to, dim=1)), 1, to[0]),
        lambda x, n: torch.cat(weighed(x.chunk(n, 1)), 1),
    ),
    "Scatter, Gather": (
        lambda x, to: apply(
            Gather, to[0], 0, *weighed(apply(Scatter, to, [1] * len(to), 0, x[: len(to)]))
        ),
        lambda x, n: torch.cat(weighed(x[:n].split(1))),
    ),
    "Gather of scalars": (
        lambda x, to: apply(Gather, to[0], 0, *weighed(x.sum().to(target) for target in to)),
        lambda x, n: torch.stack(weighed([x.sum()] * n)),
    ),
    "comm.broadcast, comm.reduce_add": (
        lambda x, to: comm.reduce_add(weighed(comm.broadcast(x, to)), to[0]),
        lambda x, n: sum(weighed([x] * n)),
    ),
    "comm.reduce_add of little that is transformed": (
        lambda x, to: comm.reduce_add(
            [*(torch.ones(x.shape, dtype=x.dtype, device=each) for each in to[1:]), x.to(to[0])],
            to[0],
        ),
        lambda x, n: x + (n - 1),
    ),
    "comm.*_coalesced": (
        lambda x, to: comm.reduce_add_coalesced(
            [weighed(row) for row in comm.broadcast_coalesced([x, x], to)], to[0]
        ),
        lambda x, n: (n * x, 2 * n * x),
    ),
    "Broadcast, ReduceAddCoalesced": (
        reduced,
        lambda x, n: tuple(sum(range(first, 2 * n + 1, 2)) * x for first in (1, 2)),
    ),
}  # fmt: skip

DERIVATIVES = {
    "jvp": lambda f, x: jvp(f, (x,), (ones(x),)),
    "vmap": lambda f, x: vmap(f)(two(x)),
    "grad": lambda f, x: grad(lambda x: sum(t.square().sum() for t in tree_leaves(f(x))))(x),
    "dual numbers": lambda f, x: dual(lambda x: tree_leaves(f(x))[0], x),
}


@pytest.mark.parametrize(
    ("name", "derivative"),
    [
        (name, derivative)
        for name, derivative in itertools.product(TRANSFERS, DERIVATIVES)
        if derivative != "grad" or "_coalesced" not in name  # those are cut off from autograd
    ],
)
@few
@given(data=st.data())
def test_transforms_of_transfers(devices, name, derivative, data):
    targets = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(targets), min_size=len(targets), max_size=9))
    x = values((batch, 3), "float64", span=3).to(targets[0])
    parallel, single = TRANSFERS[name]
    derive = DERIVATIVES[derivative]
    expected = derive(lambda x: single(x, len(targets)), x)
    refused = derivative == "grad" and len(set(targets)) > 1
    same_unless_refused(expected, lambda: derive(lambda x: parallel(x, targets), x), refused)


# It looks at tensors and at autograd functions in ways that PyTorch has deprecated. Of dataparallel
# there is nothing to warn.
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning", "ignore::DeprecationWarning")
@pytest.mark.devices(2)
def test_a_compiled_parallel_module(devices):
    """torch.compile takes what it can of it and leaves the rest; backward included."""
    torch.compiler.reset()
    net = exact(Polynomial().double(), devices[0])
    x = values((5, 2), "float64", span=3).to(devices[0])
    model = torch.compile(dataparallel.DataParallel(net, devices), backend="eager")
    found = []
    for each in (net, model):
        out = each(x)
        found.append([out, *torch.autograd.grad(out.square().sum(), list(net.parameters()))])
    torch.compiler.reset()
    same(*found)


@pytest.mark.devices(2, at_least=True)
@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_modules_inside_are_refused(devices, in_place):
    """They would compute with the original's parameters. The original is left as it was."""
    net = exact(Polynomial().double(), devices[0])
    if in_place:
        net.compile(backend="eager")
    whole = nn.Sequential(net if in_place else torch.compile(net, backend="eager"), nn.Identity())
    x = values((5, 2), "float64", span=3).to(devices[0])
    model = dataparallel.DataParallel(whole, devices)
    with pytest.raises(RuntimeError, match=r"'0' is one.*torch\.compile\(DataParallel"):
        model(x)
    assert list(dict(net.named_parameters())) == ["first.weight", "first.bias", "second.weight"]
    same(whole(x), dataparallel.DataParallel(whole, devices[:1])(x))


def test_a_large_result_is_gathered_within_vmap(devices):
    """One that is otherwise written piece by piece, into memory that knows of no dimension more."""
    x = torch.arange(2.0**20, device=devices[0]).reshape(2, -1)
    same(x, vmap(lambda row: comm.gather(comm.scatter(row, devices), 0, devices[0]))(x))


@given(data=st.data())
def test_inputs_from_the_cpu(devices, data):
    """They go through streams of their own, but not within a transform."""
    targets = data.draw(strategies.device_lists(devices))
    x = values((2, 5, 2), "float64", span=3)
    model = dataparallel.DataParallel(nn.Linear(2, 2).double().to(targets[0]), targets)
    same(torch.stack([model(row) for row in x]), vmap(model)(x))
