"""A backward pass: each part of it runs on the device and the stream of its forward.

So does what hooks and functions of a program do there, and the caller's own device and streams are
what they were before.
"""

import contextlib

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.observe import place, plain

slots = st.integers(0, 7)
# Where something happens: a device, and its default stream (0) or a stream of its own (1, 2).
places = st.tuples(slots, st.integers(0, 2))


class Noted(torch.autograd.Function):
    """Doubles, and notes the current device and its stream when a gradient passes."""

    @staticmethod
    def forward(ctx, x, noted):
        ctx.noted = noted
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.noted.append(("function", current(gradient)))
        return gradient * 2, None


def current(tensor):
    """The current device, and the stream that is current on that of `tensor`."""
    module = torch.get_device_module(tensor.device)
    return module.current_device(), module.current_stream(tensor.device)


class Streams:
    """Two streams of each device beside the default one, made when they are asked for."""

    def __init__(self, devices):
        self.module = torch.get_device_module(devices[0])
        self.devices = devices
        self.made = {}

    def at(self, slot, number):
        device = place(slot, self.devices)
        if not number:
            return self.module.default_stream(device)
        if (device, number) not in self.made:
            self.made[device, number] = self.module.Stream(device)
        return self.made[device, number]


@given(forward=st.lists(places, min_size=1, max_size=4), caller=st.lists(places, max_size=3))
def test_backward_runs_on_the_stream_of_its_forward(devices, forward, caller):
    streams, noted, expected = Streams(devices), [], []
    module = streams.module
    x = torch.ones(2, device=place(forward[0][0], devices), requires_grad=True)
    y = x
    module.synchronize(x.device)
    for step in forward:
        stream = streams.at(*step)
        with module.stream(stream):
            y = Noted.apply(y.to(stream.device), noted)
            if y.requires_grad:
                y.register_hook(lambda gradient: noted.append(("hook", current(gradient))))
        module.synchronize(stream.device)
        where = (stream.device.index, stream)
        expected = [("hook", where), ("function", where), *expected]
    for step in caller:
        module.set_stream(streams.at(*step))
    if caller:
        module.set_device(place(caller[-1][0], devices))
    before = (module.current_device(), [module.current_stream(device) for device in devices])
    try:
        y.sum().backward()
        after = (module.current_device(), [module.current_stream(device) for device in devices])
    finally:
        for device in devices:
            module.set_stream(module.default_stream(device))
        module.set_device(devices[0])
    assert noted == expected
    assert after == before
    module.synchronize(x.device)
    assert plain(x.grad.cpu()) == plain(torch.full((2,), 2.0 ** len(forward)))


@given(forward=places, caller=places)
def test_failing_backward_restores_device_and_streams(devices, forward, caller):
    streams = Streams(devices)
    module = streams.module

    def fail(gradient):
        raise ZeroDivisionError

    with module.stream(streams.at(*forward)):
        x = torch.ones(2, device=place(forward[0], devices), requires_grad=True)
        y = x * 2
        y.register_hook(fail)
    module.synchronize(x.device)
    with module.stream(streams.at(*caller)):
        before = (module.current_device(), [module.current_stream(device) for device in devices])
        with contextlib.suppress(ZeroDivisionError):
            y.sum().backward()
        after = (module.current_device(), [module.current_stream(device) for device in devices])
    assert after == before
