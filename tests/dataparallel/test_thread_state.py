"""What a thread carries of its caller's state, and that it keeps nothing of it."""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode

import dataparallel
from dataparallel._threads.caller_state import thread_is_fresh


class Calls(TorchDispatchMode):
    """Count operators."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        type(self).count += 1
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Count functions."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        type(self).count += 1
        return func(*args, **(kwargs or {}))


def in_a_transform(check):
    torch.func.grad(lambda x: (check(), x)[1])(torch.ones(()))


def within(context):
    def call(check):
        with context():
            check()

    return call


STATES = {
    "a mode of functions": within(Functions),
    "a mode of operators": within(Calls),
    "a transform": in_a_transform,
    "hooks of saved tensors": within(lambda: saved_tensors_hooks(lambda x: x, lambda x: x)),
    "no such hooks": within(lambda: disable_saved_tensors_hooks("not here")),
    "autocast on the CPU": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "inference mode": within(torch.inference_mode),
    "no forward gradients": within(lambda: forward_ad._set_fwd_grad_enabled(False)),
    "one thread for backward": within(lambda: torch.autograd.set_multithreading_enabled(False)),
    "functions of subclasses": within(torch._C.DisableTorchFunctionSubclass),
}


@pytest.mark.parametrize("name", STATES)
def test_a_thread_with_any_state_is_not_fresh(name):
    """A caller that carries some cannot do a worker's work."""
    seen = []
    STATES[name](lambda: seen.append(thread_is_fresh()))
    assert (seen, thread_is_fresh()) == ([False], True)


def test_a_thread_with_autocast_of_a_device_is_not_fresh(devices):
    with torch.autocast(devices[0].type, torch.bfloat16):
        assert not thread_is_fresh()
    assert thread_is_fresh()


class Meets(nn.Module):
    """Wait for the other replicas, so that each has a thread."""

    def __init__(self, barrier):
        super().__init__()
        self.barrier = barrier

    def forward(self, x):
        self.barrier.wait()
        return torch.tanh(x)


@pytest.mark.parametrize("kind", [Calls, Functions])
@given(data=st.data())
@pytest.mark.devices(3, at_least=True)
def test_modes_leave_a_thread_with_the_call(devices, kind, data):
    """The next call in the same thread, without the mode, is not seen by it."""
    count = data.draw(st.integers(2, len(devices)))
    modules = [Meets(threading.Barrier(count))] * count
    inputs = [torch.ones(2, device=device) for device in devices[:count]]
    kind.count = 0
    with kind():
        dataparallel.parallel_apply(modules, inputs, devices=devices[:count])
    seen = kind.count
    assert seen >= count
    for _ in range(2):
        dataparallel.parallel_apply(modules, inputs, devices=devices[:count])
    assert kind.count == seen


class Exchanges(Meets):
    """Leave another mode than there was: leaving the state fails, and the other mode is there."""

    def forward(self, x):
        out = super().forward(x)
        _pop_mode()
        torch._C._push_on_torch_function_stack(Functions())
        return out


@given(data=st.data())
@pytest.mark.devices(3, at_least=True)
def test_a_thread_is_used_no_more_if_its_state_cannot_be_left(devices, data):
    count = data.draw(st.integers(2, len(devices)))
    inputs = [torch.ones(2, device=device) for device in devices[:count]]
    meeting = threading.Barrier(count)
    with Calls(), pytest.raises(Exception, match="in replica 0"):
        dataparallel.parallel_apply([Exchanges(meeting)] * count, inputs, devices=devices[:count])
    Functions.count = 0
    dataparallel.parallel_apply([Meets(meeting)] * count, inputs, devices=devices[:count])
    assert Functions.count == 0
