"""replicate, parallel_apply, data_parallel and DataParallel next to PyTorch's own.

Left out are the rows of `torch_faults`: what a replica lists (1), parameters that no replica
uses (6), layouts other than contiguous (10), complex parameters (11), state of threads (12), the
kind of a failure that is no Exception (13), and buffers without another of their dtype (20).
"""

import re
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import parallel as theirs

import dataparallel as ours
from tests.support import strategies
from tests.support.observe import ExactNet, plain, same_memory, values
from tests.support.oracle import described, numbers, same


class Parts(nn.Module):
    """Tied and frozen parameters, buffers of all kinds, a None of each kind, a shared submodule."""

    def __init__(self, seed: int, frozen: bool, extra: int) -> None:
        super().__init__()
        self.net = ExactNet(3, "float64", seed)
        self.again = self.net.first
        self.tied = self.net.first.weight
        self.frozen = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=not frozen)
        self.register_parameter("nothing", None)
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("next", torch.tensor(8))  # or row 20 of the faults would be seen
        self.register_buffer("scale", torch.full((2,), 2.0, dtype=torch.float64))
        self.register_buffer("hidden", torch.ones(1, dtype=torch.float64), persistent=False)
        self.register_buffer("learned", torch.ones(2, dtype=torch.float64).requires_grad_())
        self.register_buffer("missing", None)
        self.more = nn.Sequential(*(nn.Linear(2, 2, dtype=torch.float64) for _ in range(extra)))
        self.absent: nn.Module | None
        self.register_module("absent", None)
        for k, parameter in enumerate(self.more.parameters()):
            parameter.data = values(tuple(parameter.shape), "float64", seed + k, span=3)

    def forward(self, x):
        out = self.net(x) + self.again(x)[..., :2] * self.scale + self.tied.sum()
        self.count += 1
        self.hidden.add_(len(x))
        return self.more(out * self.frozen * self.learned) * self.hidden


# Their backward of scatter calls the CPU -1, which their own gather warns of.
old_name_of_the_cpu = pytest.mark.filterwarnings(
    "ignore:Using -1 to represent CPU tensor:FutureWarning"
)

# Replicas of theirs on one device share the module's buffers, and count and average into them.
separate = pytest.mark.devices(2, distinct=True, at_least=True)

parts = st.builds(Parts, st.integers(0, 99), st.booleans(), st.integers(0, 2))


def reached(module, path):
    for name in path.split("."):
        module = getattr(module, name)
    return module


@separate
@given(data=st.data(), module=parts, detach=st.booleans(), training=st.booleans())
def test_replicas_are_made_of_the_same(devices, data, module, detach, training):
    """Every tensor and every submodule, by the name under which the forward finds it."""
    targets = data.draw(strategies.device_lists(devices))
    module = module.to(targets[0]).train(training)
    tensors = [name for name, _ in [*module.named_parameters(remove_duplicate=False),
                                    *module.named_buffers(remove_duplicate=False)]]  # fmt: skip
    seen = []
    for lib in (ours, theirs):
        replicas = lib.replicate(module, targets, detach)
        reported = []
        for replica in replicas:
            own = [reached(replica, name) for name in tensors]
            reported.append(
                {
                    "tensors": [described(tensor) for tensor in own],
                    "shared": [
                        same_memory(reached(module, name), tensor)
                        for name, tensor in zip(tensors, own, strict=True)
                    ],
                    "ties": [replica.tied is replica.net.first.weight,
                             replica.again is replica.net.first],
                    "none": [replica.nothing, replica.missing, replica.absent],
                    "submodules": [(name, type(m), m.training) for name, m in
                                   replica.named_modules(remove_duplicate=False)],
                }
            )  # fmt: skip
        seen.append(reported)
    assert seen[0] == seen[1]


def two_steps(lib, module, targets, batch, source, output):
    """All that can be seen of two steps without zeroing gradients in between."""
    model = lib.DataParallel(module.to(targets[0]), targets, output)
    reported = []
    for step in range(2):
        x = values((batch, 3), "float64", step, span=3).to(source).requires_grad_()
        out = model(x)
        (out * values(tuple(out.shape), "float64", step, span=3).to(out.device)).sum().backward()
        reported.append((described(out.detach()), described(x.grad)))
    return {
        "steps": reported,
        "calls": sorted((shape, str(device)) for _, shape, _, device in module.net.diary),
        "gradients": {name: described(p.grad) for name, p in module.named_parameters() if
                      p.requires_grad},
        "buffers": {name: described(b.detach()) for name, b in module.named_buffers()},
    }  # fmt: skip


@separate
@old_name_of_the_cpu
@given(
    data=st.data(),
    arguments=st.tuples(st.integers(0, 99), st.booleans(), st.integers(0, 2)),
    repeats=st.booleans(),
)
def test_training_steps(devices, data, arguments, repeats):
    """Outputs, chunk sizes, gradients of inputs and parameters, and buffers after two steps."""
    targets = data.draw(strategies.device_lists(devices))
    targets = [*targets, targets[0]] if repeats else targets
    batch = data.draw(strategies.batches(len(targets), 40, min_size=1))
    source = data.draw(st.sampled_from([targets[0], targets[-1], torch.device("cpu")]))
    output = data.draw(st.none() | st.sampled_from(targets))
    if len(set(targets)) == 1:
        source = targets[0]  # gradients arrive on the device of a module that is not replicated
    mine, wanted = (
        two_steps(lib, Parts(*arguments), targets, batch, source, output) for lib in (ours, theirs)
    )
    for name, seen in mine.items():
        assert seen == wanted[name], name


@separate
@given(data=st.data(), training=st.booleans(), grad=st.booleans(), dim=st.sampled_from((0, 1)))
def test_outputs_and_statistics_of_ordinary_numbers(devices, data, training, grad, dim):
    """Each replica computes what theirs does, bit for bit, and the first one's statistics last."""
    targets = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(targets), 30, min_size=2))
    x = torch.randn(2, batch, 4) if dim else torch.randn(batch, 2, 4)
    seen = []
    for lib in (ours, theirs):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(2), nn.Tanh())
        if dim:
            net = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Tanh())
        net = net.to(targets[0]).train(training)
        model = lib.DataParallel(net, targets, dim=dim)
        with torch.set_grad_enabled(grad):
            outs = [described(model(x + step)) for step in range(2)]
        seen.append((outs, {name: plain(buffer) for name, buffer in net.named_buffers()}))
    assert seen[0] == seen[1]


class Fails(nn.Module):
    """Fails if it is told to; else says what it was given, from its own thread."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error
        self.home = threading.get_ident()

    def forward(self, *args, **kwargs):
        if self.error is not None:
            raise self.error
        in_thread = threading.get_ident() != self.home
        return args, kwargs, torch.is_grad_enabled(), in_thread


@given(
    data=st.data(),
    broken=st.lists(st.booleans(), min_size=8, max_size=8),
    single=st.booleans(),
    grad=st.booleans(),
)
def test_parallel_apply(devices, data, broken, single, grad):
    """With devices given: without, theirs runs all replicas on the caller's current device."""
    targets = data.draw(strategies.device_lists(devices))
    modules = [
        Fails(ValueError(f"broken: {k}") if fails else None)
        for k, fails in zip(range(len(targets)), broken, strict=False)
    ]
    rows = [torch.ones(k, device=target) for k, target in enumerate(targets)]
    inputs = rows if single else [(row, k) for k, row in enumerate(rows)]
    kwargs = data.draw(st.none() | st.just([{"k": k} for k in range(len(targets))]))
    texts = []

    def call(lib):
        try:
            with torch.set_grad_enabled(grad):
                return lib.parallel_apply(modules, inputs, kwargs, numbers(targets))
        except ValueError as error:
            # The first ones: in Python 3.10, which has no notes, ours tells of the others next.
            words = re.search(r"in replica (\d+) on device.*?broken: (\d+)\n", f"{error}\n", re.S)
            texts.append(words.groups())
            raise

    same(lambda: call(ours), lambda: call(theirs))
    assert texts[:1] == texts[1:]
