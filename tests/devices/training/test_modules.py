"""Modules, autograd and optimizers on every device index: what training code counts on."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from tests.support import strategies
from tests.support.backward_errors import KINDS, PlantedError
from tests.support.interrupts import Interrupt, Interrupter
from tests.support.observe import ExactNet, place, plain, same_memory


@given(data=st.data())
def test_moving_a_module_keeps_its_parameters(devices, data):
    """The objects stay the same from the CPU to a device, between devices and back."""
    path = data.draw(strategies.device_lists([torch.device("cpu"), *devices]))
    net = ExactNet(3, "float32")
    parameters = list(net.parameters())
    before = [plain(p) for p in parameters]
    for device in path:
        assert net.to(device) is net
        assert [id(p) for p in net.parameters()] == [id(p) for p in parameters]
        assert {p.device for p in parameters} == {device}
        assert [plain(p) for p in parameters] == before


@pytest.mark.filterwarnings("ignore:`torch.jit")
@given(data=st.data())
def test_a_scripted_module_moves(devices, data):
    """C++ computes with its parameters, wherever it was compiled and wherever it goes."""
    path = data.draw(strategies.device_lists([torch.device("cpu"), *devices]))
    net = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.BatchNorm1d(2)))
    x = torch.arange(12.0).reshape(4, 3)
    expected = plain(net(x))
    net[1][0].reset_running_stats()
    compiled = torch.jit.script(net)
    for device in path:
        assert compiled.to(device) is compiled
        assert {t.device for t in compiled.state_dict().values()} == {device}
        compiled.zero_grad()
        y = compiled(x.to(device))
        y.sum().backward()
        assert {p.grad.device for p in compiled.parameters()} == {device}
        torch.testing.assert_close(y.cpu(), torch.tensor(expected), rtol=1e-4, atol=1e-4)


@given(data=st.data(), seed=st.integers(0, 100))
def test_checkpointing_repeats_dropout(devices, data, seed):
    """What a device drew in the forward is drawn again when the forward is run again."""
    device = data.draw(st.sampled_from(devices))
    x = torch.ones(256, device=device, requires_grad=True)
    torch.manual_seed(seed)
    out = checkpoint(nn.functional.dropout, x, use_reentrant=False)
    out.sum().backward()
    assert plain(x.grad) == plain(out)
    assert 0 < int((out == 0).sum()) < 256


@given(pair=st.tuples(st.integers(-1, 7), st.integers(-1, 7)))
def test_hooks_of_a_parameter_survive_new_data(devices, pair):
    here, there = (place(slot, devices) for slot in pair)
    x = torch.ones(2, device=here, requires_grad=True)
    called = []
    x.register_hook(lambda gradient: called.append(gradient.device))
    x.register_post_accumulate_grad_hook(lambda x: called.append(x.grad.device))
    x.data = x.data.to(there)
    x.sum().backward()
    assert called == [there, there]
    with pytest.raises(TypeError, match="has to be a tensor"):
        x.data = 3


@pytest.mark.filterwarnings("ignore:grad and param do not obey the gradient layout contract")
@given(
    here=st.integers(-1, 7),
    there=st.integers(-1, 7),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.complex64]),
    shape=st.lists(st.integers(1, 3), max_size=2),
    earlier=st.booleans(),
)
def test_assigning_data_changes_only_the_memory(devices, here, there, dtype, shape, earlier):
    """Its gradient stays where and as it is, and what was computed before goes on adding to it."""
    here, there = place(here, devices), place(there, devices)
    x = torch.ones(2, device=here, requires_grad=True)
    x.mul(5).sum().backward()
    gradient, version = x.grad, x._version
    total = (x * 3).sum()
    new = torch.full(shape, 2, dtype=dtype, device=there)
    x.data = new
    assert (x.device, x.dtype, x.shape, x._version) == (there, dtype, new.shape, version)
    assert x.requires_grad
    assert x.is_leaf
    assert plain(x) == plain(new)
    assert same_memory(x, new)
    if earlier:
        total.backward()
    assert x.grad is gradient
    assert gradient.device == here
    assert plain(gradient) == [5.0 + 3 * earlier] * 2
    x.grad = total = None
    (x * 2).sum().abs().backward()
    assert (x.grad.device, x.grad.dtype, x.grad.shape) == (there, dtype, new.shape)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle")
@given(pair=st.tuples(st.integers(-1, 7), st.integers(-1, 7)), shapes=st.booleans())
def test_module_moves_while_its_parameters_are_observed(devices, pair, shapes):
    """A profiler and autocast's cache refer to them in C++."""
    here, there = (place(slot, devices) for slot in pair)
    net = nn.Linear(2, 2).to(here)
    before = plain(net.weight)
    looks = profile(activities=[ProfilerActivity.CPU], record_shapes=shapes)
    with looks, torch.autocast(here.type, torch.bfloat16):
        net(torch.ones(1, 2, device=here))
        net.to(there)
    assert (net.weight.device, plain(net.weight)) == (there, before)


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
