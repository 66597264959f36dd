"""Interrupts at any moment, and errors in a backward pass, come out and leave nothing behind."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.support.backward_errors import KINDS, PlantedError
from tests.support.interrupts import Interrupt, Interrupter
from tests.support.observe import plain


def step(net, x):
    net(x).relu().sum().backward()
    for parameter in net.parameters():
        parameter.grad = None


@given(slot=st.integers(0, 7), part=st.floats(0, 1))
def test_an_interrupted_step_leaves_nothing_behind(devices, slot, part):
    device = devices[slot % len(devices)]
    module = torch.get_device_module(device)
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(device)
    x = torch.ones(5, 3, device=device)
    step(net, x)
    before = module.memory_allocated(device)
    with Interrupter(0) as whole:
        step(net, x)
    interrupter = Interrupter(1 + int(part * whole.passed))
    with torch.autograd.set_multithreading_enabled(True):
        with contextlib.suppress(Interrupt):
            with interrupter:
                step(net, x)
            assert interrupter.passed < interrupter.at, "the interrupt was lost"
        assert torch._C._is_multithreading_enabled()
    net.zero_grad()
    step(net, x)  # the engine keeps what it had queued until the next backward pass, on any device
    assert module.memory_allocated(device) == before


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(data=st.data())
def test_an_error_in_a_backward_pass_reaches_the_caller(devices, kind, data):
    device = data.draw(st.sampled_from(devices))
    x = torch.ones(4, device=device, requires_grad=True)
    with pytest.raises(PlantedError, match="raised in a backward pass"):
        KINDS[kind](x).sum().backward()
    # The device is as good as before, for this thread and its autograd.
    x = torch.ones(4, device=device, requires_grad=True)
    (x * x).sum().backward()
    assert plain(x.grad) == [2.0] * 4
