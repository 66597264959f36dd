"""What records and instruments say of a backward pass: the streams of its kernels, and its waits.

Where a gradient passes from one stream to another, autograd's engine lets the second wait for the
first. That is done in C++, and instruments are told.
"""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._core.hooks import Instrument
from tests.support.instruments import added


class Order(Instrument):
    """For each stream, how far it has seen to: by stream, the number of kernels it is behind."""

    def __init__(self):
        self.seen = {}  # by stream, of each stream how many of its kernels it comes after
        self.events = {}
        self.kernels = []
        self.used = []

    def clock(self, key):
        return self.seen.setdefault(key, {})

    def follow(self, key, other):
        mine = self.clock(key)
        for stream, count in other.items():
            mine[stream] = max(count, mine.get(stream, 0))

    def before_launch(self, launch):
        key = (launch.device.index, launch.stream)
        clock = self.clock(key)
        clock[key] = clock.get(key, 0) + 1
        self.kernels.append((launch.op, key, dict(clock)))

    def event_recorded(self, event, stream):
        self.events[event] = dict(self.clock((stream.device_index, stream.stream_id)))

    def stream_waits(self, stream, awaited):
        key = (stream.device_index, stream.stream_id)
        if isinstance(awaited, torch.Event):
            self.follow(key, self.events.get(awaited, {}))
        else:
            self.follow(key, self.clock((awaited.device_index, awaited.stream_id)))

    def used_on_stream(self, address, stream):
        self.used.append((address, stream))


@pytest.mark.without("--races", reason="only the backward pass puts its streams in order")
@given(numbers=st.lists(st.integers(0, 2), min_size=2, max_size=5), caller=st.integers(0, 2))
def test_each_kernel_comes_after_the_one_that_made_its_gradient(simulated, numbers, caller):
    device = simulated[1]
    streams = [torch.simgpu.default_stream(device), *(torch.simgpu.Stream(device) for _ in "12")]
    x = torch.ones(3, device=device, requires_grad=True)
    y = x
    for number in numbers:
        with torch.simgpu.stream(streams[number]):
            y = y.exp()
    gradient = torch.ones_like(y)
    order = Order()
    with added(order), torch.simgpu.stream(streams[caller]):
        y.backward(gradient)
    kernels = [kernel for kernel in order.kernels if kernel[0] == "mul.Tensor"]
    assert [key for _, key, _ in kernels] == [
        (device.index, streams[number].stream_id) for number in reversed(numbers)
    ]
    for (_, earlier, then), (_, _, clock) in itertools.pairwise(kernels):
        assert clock.get(earlier, 0) >= then[earlier]
    after = order.clock((device.index, streams[caller].stream_id))
    _, last, then = kernels[-1]
    assert after.get(last, 0) >= then[last]  # whoever called backward may use the gradients


@pytest.mark.without("--races", reason="only the backward pass puts its streams in order")
@given(numbers=st.lists(st.integers(0, 2), min_size=2, max_size=4))
def test_memory_of_a_gradient_records_the_stream_of_its_reader(simulated, numbers):
    device = simulated[0]
    streams = [torch.simgpu.default_stream(device), *(torch.simgpu.Stream(device) for _ in "12")]
    x = torch.ones(3, device=device, requires_grad=True)
    y, expected = x, []
    for number in numbers:
        with torch.simgpu.stream(streams[number]):
            y = y.exp()
            y.register_hook(lambda gradient: expected.append(gradient.data_ptr()))
    order = Order()
    with added(order):
        y.sum().backward()
    readers = [streams[number] for number in reversed(numbers)]
    writers = [streams[0], *readers[:-1]]
    assert order.used == [
        (address, reader)
        for address, reader, writer in zip(expected, readers, writers, strict=True)
        if reader != writer
    ]


@pytest.mark.without("--async", "--races", reason="these listen")
def test_nothing_is_noted_without_listeners(simulated):
    from simgpu._util.thread_rows import LOG, per_thread

    rows = []
    x = torch.ones(3, device=simulated[0], requires_grad=True)
    with torch.simgpu.stream(torch.simgpu.Stream(simulated[0])):
        y = x.exp()
    y.register_hook(lambda gradient: rows.append(per_thread.row[LOG]))
    y.sum().backward()
    assert rows == [0]
