"""Loss scaling: which steps are skipped, how the scale moves, and that training is unharmed by it.

The reference is a training loop on the CPU that casts by hand and keeps the scale by the rules in
the documentation of `torch.amp.GradScaler`. Scales are powers of two, so that scaling and
unscaling are exact and both loops have the same numbers.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.support.observe import plain, values

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.25, momentum=0.5, foreach=False),
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.25, momentum=0.5, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.25, foreach=False),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.25, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, lr=0.25, fused=True),
}


class Scale:
    """What the scale should be after each step, by the rules."""

    def __init__(self, interval):
        self.value, self.interval, self.good_steps = 8.0, interval, 0

    def update(self, finite):
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value *= 0.5
        elif self.good_steps == self.interval:
            self.value, self.good_steps = self.value * 2, 0


def scaler_for(device, interval=2000):
    return torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=interval)


def network():
    net = nn.Linear(3, 2)
    with torch.no_grad():
        net.weight.copy_(values((2, 3), "float32", span=5) / 4)
        net.bias.zero_()
    return net


def batch(step):
    return values((4, 3), "float32", step, span=5) / 2, values((4, 2), "float32", step, span=5)


def weights(net):
    return [p.detach().cpu().clone() for p in net.parameters()]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@given(
    data=st.data(),
    factors=st.lists(st.sampled_from((1.0, 1.0, float("inf"), float("nan"))), max_size=6),
    interval=st.integers(1, 3),
    clip=st.booleans(),
)
def test_training_equals_the_loop_by_hand(devices, name, data, factors, interval, clip):
    """Every optimizer, clipping or not: a step is skipped where a gradient is no number."""
    device = data.draw(st.sampled_from(devices))
    lower = data.draw(st.sampled_from((torch.float16, torch.bfloat16)))
    here, there = network(), network().to(device)
    by_hand, optimizer = (OPTIMIZERS[name](net.parameters()) for net in (here, there))
    scale, scaler = Scale(interval), scaler_for(device, interval)
    for step, factor in enumerate(factors):
        x, target = batch(step)
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=lower):
            loss = functional.mse_loss(there(x.to(device)), target.to(device)) * factor
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(there.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()

        by_hand.zero_grad()
        out = functional.linear(x.to(lower), here.weight.to(lower), here.bias.to(lower))
        (functional.mse_loss(out.float(), target) * factor * scale.value).backward()
        for parameter in here.parameters():
            parameter.grad /= scale.value
        if clip:
            nn.utils.clip_grad_norm_(here.parameters(), 0.5)
        if factor == 1.0:
            by_hand.step()
        scale.update(factor == 1.0)

        assert scaler.get_scale() == scale.value
        for one, other in zip(weights(there), weights(here), strict=True):
            torch.testing.assert_close(one, other)
    assert scaler.state_dict()["scale"] == scale.value


@given(data=st.data())
def test_one_bad_gradient_on_any_device_skips_the_step_on_all(devices, data):
    count = data.draw(st.integers(1, len(devices)))
    bad = data.draw(st.none() | st.integers(0, count - 1))
    nets = [network().to(device) for device in devices[:count]]
    parameters = [p for net in nets for p in net.parameters()]
    optimizer, scaler = torch.optim.SGD(parameters, lr=1.0), scaler_for(devices[0])
    for slot, net in enumerate(nets):
        factor = float("nan") if slot == bad else 1.0
        out = net(torch.ones(2, 3, device=devices[slot]))
        scaler.scale(out.sum() * factor).backward()
    before = [weights(net) for net in nets]
    scaler.step(optimizer)
    scaler.update()
    for net, old in zip(nets, before, strict=True):
        for one, other in zip(weights(net), old, strict=True):
            assert torch.equal(one, other) == (bad is not None)
    assert scaler.get_scale() == (8.0 if bad is None else 4.0)


@given(data=st.data(), dtype=st.sampled_from((torch.float32, torch.float64, torch.float16)))
def test_gradients_are_unscaled_exactly(devices, data, dtype):
    device = data.draw(st.sampled_from(devices))
    numbers = data.draw(st.lists(st.integers(-100, 100), min_size=1, max_size=5))
    special = data.draw(st.sampled_from((None, float("inf"), -float("inf"), float("nan"))))
    if special is not None:
        numbers.insert(data.draw(st.integers(0, len(numbers))), special)
    gradients = [
        torch.tensor(numbers, dtype=dtype, device=device),
        torch.ones(2, dtype=dtype, device=device),
    ]
    found = torch.zeros((), device=device)
    torch._amp_foreach_non_finite_check_and_unscale_(
        gradients, found, torch.full((), 0.25, device=device)
    )
    assert float(found) == (special is not None)
    assert plain(gradients[1].float()) == [0.25, 0.25]
    expected = torch.tensor(numbers, dtype=dtype) * 0.25
    assert torch.equal(gradients[0].cpu().nan_to_num(0.0), expected.nan_to_num(0.0))
