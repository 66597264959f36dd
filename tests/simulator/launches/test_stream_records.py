"""What records say of a kernel or copy: its kind, where it is queued, the stream and the bytes.

And where memory goes from one stream to another: the waits and `record_stream` that real devices
need. A simulated device computes at once, so a missing wait shows in no number, only here.
"""

import contextlib
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dataparallel
import simgpu
from simgpu._core.hooks import Instrument
from tests.support import strategies
from tests.support.instruments import added
from tests.support.observe import values

HOST = torch.device("cpu")

# A call on `x` of one device and `y` of another; what it is, from where to where, and the bytes
# that it writes (both tensors are 6 numbers of float32).
CALLS = {
    "a kernel": (lambda x, y: x.exp(), "kernel", "x", "x", 24),
    "another dtype": (lambda x, y: x.double(), "kernel", "x", "x", 48),
    "a clone": (lambda x, y: x.clone(), "kernel", "x", "x", 24),
    "a copy within a device": (lambda x, y: x.copy_(x.detach() + 0), "kernel", "x", "x", 24),
    "to another device": (lambda x, y: x.to(y.device), "copy", "x", "y", 24),
    "to another device and dtype": (lambda x, y: x.to(y.device, torch.half), "copy", "x", "y", 12),
    "into another device": (lambda x, y: y.copy_(x), "copy", "x", "y", 24),
    "to the host": (lambda x, y: x.cpu(), "copy", "x", "host", 24),
    "into the host": (lambda x, y: torch.empty(2, 3).copy_(x), "copy", "x", "host", 24),
    "from the host": (lambda x, y: torch.ones(5).to(x.device), "copy", "host", "x", 20),
    "values": (lambda x, y: torch.tensor([1.0, 2.0], device=x.device), "copy", "host", "x", 8),
    "a number": (lambda x, y: x[0, 0].item(), "copy", "x", "host", 0),
    "a storage to the host": (lambda x, y: x.untyped_storage().cpu(), "copy", "x", "host", 24),
    "a sparse tensor": (lambda x, y: SPARSE.to(x.device), "copy", "host", "x", 40),
    "a sparse tensor of rows": (
        lambda x, y: SPARSE.to_sparse_csr().to(x.device),
        "copy",
        "host",
        "x",
        48,
    ),
    "a nested tensor": (lambda x, y: nested().to(x.device), "copy", "host", "x", 36),
}
SPARSE = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse()


def nested():
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])


def entered(stack, streams):
    """Make these streams current, and the device of the last one."""
    for stream in streams:
        stack.enter_context(torch.simgpu.stream(stream))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:The PyTorch API of nested")
@pytest.mark.parametrize("name", sorted(CALLS))
@given(data=st.data())
def test_a_record_has_stream_and_device_of_its_call(simulated, name, data):
    """Queued on the device that is read, or on the one written to where the host is read."""
    call, kind, source, target, nbytes = CALLS[name]
    here, there, elsewhere = data.draw(st.permutations(simulated))[:3]
    with_own_streams = data.draw(st.lists(st.sampled_from((here, there, elsewhere)), max_size=3))
    places = {"x": here, "y": there, "host": HOST}
    x, y = (values((2, 3), "float32").to(device) for device in (here, there))
    with contextlib.ExitStack() as stack:
        entered(stack, map(torch.simgpu.Stream, with_own_streams))
        reported = Listener()
        with added(reported), simgpu.trace() as trace:
            call(x, y)
        queue = places[target if source == "host" else source]
        stream = torch.simgpu.current_stream(queue).stream_id
    found = [record for record in trace if record.nbytes or record.op == "_local_scalar_dense"]
    record = found[-1]
    assert (record.kind, record.source, record.target) == (kind, places[source], places[target])
    assert (record.device, record.stream) == (queue, stream)
    assert (stream != 0) == (queue in with_own_streams)
    assert record.nbytes == nbytes
    assert sum(event[0] == "host waits" for event in reported.seen) == (target == "host")
    assert sum(other.kind == "copy" for other in trace) == (kind == "copy")


MAKE = (torch.empty_like, torch.ones_like, torch.randn_like, torch.Tensor.new_ones)


@given(data=st.data(), dtype=strategies.dtypes())
def test_a_tensor_made_on_the_host_launches_nothing(simulated, data, dtype):
    """Even where it is made like one that lies there: nothing is read, and nobody waits."""
    make = data.draw(st.sampled_from(MAKE))
    of = torch.float32 if make is torch.randn_like else getattr(torch, dtype)
    x = torch.ones(3, dtype=of, device=data.draw(st.sampled_from(simulated)))
    size = ((2,),) if make is torch.Tensor.new_ones else ()
    reported = Listener()
    with added(reported), simgpu.trace() as trace:
        made = make(x, *size, device="cpu")
    assert (made.device, made.dtype) == (HOST, of)
    assert trace == []
    assert reported.seen == []


class Listener(Instrument):
    """What is told of copies, waits of streams and hosts, and uses of memory, in its order."""

    def __init__(self):
        self.seen = []

    def after_launch(self, launch, record):
        if record.kind == "copy":
            self.seen.append(("copy", record.target, record.stream))

    def stream_waits(self, stream, awaited):
        self.seen.append(("waits", stream.device, stream.stream_id, awaited.stream_id))

    def used_on_stream(self, address, stream):
        self.seen.append(("used", stream.device, stream.stream_id))

    def host_synchronizes(self, awaited):
        self.seen.append(("host waits", awaited))


@given(case=strategies.step_cases(min_batch=1), data=st.data())
def test_chunks_of_the_host_are_awaited_where_they_are_used(simulated, case, data):
    """Each is copied on a stream in the background; the caller's waits for it, and then owns it."""
    targets = [simulated[slot] for slot in case.slots]
    with_own_streams = data.draw(st.lists(st.sampled_from(targets), max_size=3))
    x = values(case.shape, case.dtype)
    reported = Listener()
    with contextlib.ExitStack() as stack:
        entered(stack, map(torch.simgpu.Stream, with_own_streams))
        with added(reported):
            chunks = dataparallel.scatter(x, targets)
        mine = {target: torch.simgpu.current_stream(target).stream_id for target in targets}
    for chunk in chunks:
        device = chunk.device
        ((_, _, background),) = (e for e in reported.seen if e[:2] == ("copy", device))
        assert background != 0  # it may be a stream of the block: CUDA's pool of 32 repeats
        expected = [
            ("copy", device, background),
            ("waits", device, mine[device], background),
            ("used", device, mine[device]),
        ]
        assert [event for event in reported.seen if event[1] == device] == expected
    assert len(reported.seen) == 3 * len(chunks)


@given(case=strategies.step_cases(min_batch=1), data=st.data())
def test_chunks_and_outputs_of_devices_go_by_current_streams(simulated, case, data):
    """Copies between devices are ordered by the streams that are current on both."""
    targets = [simulated[slot] for slot in case.slots]
    x = values(case.shape, case.dtype).to(targets[0])
    reported = Listener()
    with contextlib.ExitStack() as stack:
        entered(stack, map(torch.simgpu.Stream, data.draw(strategies.device_lists(targets))))
        streams = {target: torch.simgpu.current_stream(target).stream_id for target in targets}
        with added(reported), simgpu.trace() as trace:
            dataparallel.gather(dataparallel.scatter(x, targets), targets[-1])
    assert {record.stream == streams[record.device] for record in trace} <= {True}
    assert {event[0] for event in reported.seen} <= {"copy"}


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
