"""Broadcast and replicate: where the copies are, what they share, and what flows back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel
from tests.support import strategies
from tests.support.observe import chosen, observe, plain, same_memory, slot_of, values


class Branched(nn.Module):
    """A network with a tie, a frozen part, an unused slot, buffers and nesting."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3, bias=False))
        self.head = nn.Linear(3, 3)
        self.head.weight = self.body[0].weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_parameter("unused", None)
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("hidden", torch.ones(1, dtype=torch.int64), persistent=False)
        self.again = self.body[2]
        with torch.no_grad():
            for k, parameter in enumerate(self.parameters()):
                parameter.copy_(values(tuple(parameter.shape), parameter.dtype, seed + k, span=5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(self.body(x))) * self.frozen + self.count[0]


def tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by their name as attributes, ties under each of their names."""
    found = {}
    for path, child in module.named_modules(remove_duplicate=False):
        names = [*child._parameters, *child._buffers]
        for name in names:
            value = getattr(child, name)
            if value is not None:
                found[f"{path}.{name}"] = value
    return found


@given(case=strategies.collective_cases("broadcast"))
def test_broadcast_puts_the_same_values_everywhere(devices, case):
    seen = observe(case, devices)
    targets = chosen(case.slots, devices)
    assert seen["slots"] == [slot_of(target, devices) for target in targets]
    assert seen["values"] == [plain(values(case.shape, case.dtype, case.seed))] * len(targets)
    assert not any(seen["views"][1:])


@given(data=st.data(), seed=st.integers(0, 100), detach=st.booleans(), training=st.booleans())
def test_each_replica_is_complete_and_on_its_device(devices, data, seed, detach, training):
    """With the ties and the mode of the module, which is left as it was."""
    targets = data.draw(strategies.device_lists(devices))
    module = Branched(seed).to(targets[0]).train(training)
    original = tensors_of(module)
    replicas = dataparallel.replicate(module, targets, detach)
    assert len(replicas) == len(targets)
    for replica, target in zip(replicas, targets, strict=True):
        copied = tensors_of(replica)
        assert set(copied) == set(original)
        assert [*dict(replica.named_parameters())] == [*dict(module.named_parameters())]
        assert {tensor.device for tensor in copied.values()} == {target}
        assert {n: plain(t) for n, t in copied.items()} == {
            n: plain(t) for n, t in original.items()
        }
        assert [type(child) for child in replica.modules()] == [
            type(child) for child in module.modules()
        ]
        assert replica is not module
        assert replica.head.weight is replica.body[0].weight
        assert replica.again is replica.body[2]
        assert {child.training for child in replica.modules()} == {training}
    left = tensors_of(module)
    assert left.keys() == original.keys()
    assert all(left[name] is tensor for name, tensor in original.items())


@given(data=st.data())
def test_only_the_first_replica_shares_buffers(devices, data):
    """What replica 0 writes into a buffer lasts; what the others write does not."""
    targets = data.draw(strategies.device_lists(devices))
    module = Branched().to(targets[0])
    for k, replica in enumerate(dataparallel.replicate(module, targets)):
        assert same_memory(replica.count, module.count) == (k == 0)
        assert same_memory(replica.hidden, module.hidden) == (k == 0)
        assert replica.count.grad_fn is None
        assert not replica.count.requires_grad


KINDS = {"ours": dataparallel.DataParallel, "theirs": nn.DataParallel}


class Ranges(nn.Module):
    """Learns at its first call how many columns there are, as observers of quantization do."""

    def __init__(self, held):
        super().__init__()
        self.register_buffer("least", torch.full((held,), 9.0))
        self.slope = nn.Parameter(torch.ones(()))

    def forward(self, x):
        low = x.amin(0)
        if self.least.numel() == 0:
            self.least.resize_(low.shape).fill_(9.0)
        self.least.copy_(torch.minimum(self.least, low))
        return self.slope * (x - self.least)


@pytest.mark.parametrize("name", sorted(KINDS))
@given(
    count=st.integers(1, 4),
    columns=st.integers(1, 4),
    held=st.integers(0, 1),
    grad=st.booleans(),
    cached=st.booleans(),
)
def test_resize_in_the_first_replica_is_kept(simulated, name, count, columns, held, grad, cached):
    """The published case is PyTorch's own, test_qat_data_parallel of its quantization tests."""
    module = Ranges(held and columns).to(simulated[0])
    options = {"cache_parameters": cached} if name == "ours" else {}
    parallel = KINDS[name](module, list(range(count)), **options)
    rows = torch.arange(8.0 * columns, device=simulated[0]).reshape(8, columns).flip(0)
    with torch.set_grad_enabled(grad):
        parallel(rows)
        again = parallel(rows)
    first = rows.chunk(count)[0].amin(0)
    assert module.least.tolist() == torch.minimum(first, first.new_tensor(9.0)).tolist()
    assert again.shape == rows.shape
