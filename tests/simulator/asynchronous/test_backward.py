"""Backward passes over several streams: autograd's engine puts them in order."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu


@given(
    numbers=st.lists(st.integers(0, 2), min_size=2, max_size=5),
    seed=st.none() | st.integers(0, 2**16),
)
def test_gradients_are_right_on_any_streams(simulated, numbers, seed):
    """`numbers` are the streams of the operators; the caller's is the default one."""
    device = simulated[0]
    with simgpu.asynchronous(seed):
        streams = [
            torch.simgpu.default_stream(device),
            *(torch.simgpu.Stream(device) for _ in "12"),
        ]
        x = torch.tensor([1.0, 2.0, 3.0]).to(device).requires_grad_()
        y, last = x, streams[0]
        for number in numbers:
            streams[number].wait_stream(last)
            last = streams[number]
            with torch.simgpu.stream(last):
                y.record_stream(last)
                y = y * 2 + 1
        streams[0].wait_stream(last)
        y.record_stream(streams[0])
        y.square().sum().backward()
        del y
        held = []
        for stream in streams:  # each of which may get what was given back there
            with torch.simgpu.stream(stream):
                held += [torch.zeros(3, device=device) for _ in numbers]
        gradient = x.grad.tolist()
    assert len(held) == 3 * len(numbers)
    slope, value = 2.0 ** len(numbers), torch.tensor([1.0, 2.0, 3.0])
    for _ in numbers:
        value = value * 2 + 1
    assert gradient == (2 * slope * value).tolist()
