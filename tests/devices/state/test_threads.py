"""Current devices and streams: each thread has its own, and no index means the current device."""

import contextlib
import io
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.support.observe import place, plain
from tests.support.threads import in_thread


@given(data=st.data())
def test_the_current_device_is_the_threads_own(devices, data):
    module = torch.get_device_module(devices[0])
    mine, theirs = (data.draw(st.sampled_from(devices)) for _ in range(2))

    def work():
        started_at = module.current_device()
        module.set_device(theirs)
        return started_at, module.current_device(), torch.ones(1, device=theirs.type).device

    with module.device(mine):
        assert in_thread(work) == (0, theirs.index, theirs)
        assert module.current_device() == mine.index
        assert torch.ones(1, device=mine.type).device == mine


@given(data=st.data())
def test_stream_block_restores_the_device_of_each_thread(devices, data):
    """Two threads make one stream current at the same time; the first to begin ends first."""
    module = torch.get_device_module(devices[0])
    mine, theirs, target = (data.draw(st.sampled_from(devices)) for _ in range(3))
    stream = module.Stream(target)
    together = threading.Barrier(2, timeout=120)

    def work():
        with module.device(theirs):
            together.wait()  # the other is within
            with module.stream(stream):
                together.wait()  # both are
                together.wait()  # the other is back
            return module.current_device()

    with ThreadPoolExecutor(1) as pool, module.device(mine):
        found = pool.submit(work)
        with module.stream(stream):
            together.wait()
            together.wait()
        back = module.current_device()
        together.wait()
        assert (back, found.result()) == (mine.index, theirs.index)
        assert module.current_stream(target) == module.default_stream(target)


@given(data=st.data())
def test_accelerator_stream_is_the_device_stream(devices, data):
    """`torch.accelerator.set_stream` takes the stream's device along, in the calling thread."""
    module = torch.get_device_module(devices[0])
    before, target = (data.draw(st.sampled_from(devices)) for _ in range(2))
    default, stream = module.default_stream(target), module.Stream(target)
    with module.device(before):
        torch.accelerator.set_stream(stream)
        try:
            assert module.current_device() == torch.accelerator.current_device_index()
            assert module.current_device() == target.index
            assert module.current_stream() == stream
            # On CUDA it is a torch.Stream, which equals no torch.cuda.Stream.
            found = torch.accelerator.current_stream(target)
            assert (found.device, found.stream_id) == (target, stream.stream_id)
            assert in_thread(module.current_device) == 0
            assert in_thread(module.current_stream, target) == default
        finally:
            torch.accelerator.set_stream(default)
        assert module.current_stream(target) == default


@pytest.mark.parametrize("by", ["device", "name", "number", "parts"])
@given(data=st.data())
def test_generic_streams_and_events_are_those_of_the_device(devices, by, data):
    """torch.Stream and torch.Event, which name no device type, however the device is told."""
    device = data.draw(st.sampled_from(devices))
    module = torch.get_device_module(device)
    if by == "parts":
        known = module.Stream(device)
        stream = torch.Stream(
            stream_id=known.stream_id,
            device_index=known.device_index,
            device_type=known.device_type,
        )
        assert (stream.device, stream.stream_id) == (known.device, known.stream_id)
    else:
        reported = {"device": device, "name": str(device), "number": device.index}[by]
        stream = torch.Stream(reported)
    assert isinstance(stream, torch.Stream)
    assert (stream.device, stream.device_index) == (device, device.index)
    with module.device(device):
        assert torch.Stream().device == device
    begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    stream.record_event(begin)
    end.record(stream)
    stream.wait_event(end)
    end.synchronize()
    assert isinstance(end, torch.Event)
    assert end.query()
    assert begin.elapsed_time(end) >= 0


def test_subclasses_of_generic_streams_and_events(devices):
    class Stream(torch.Stream):
        pass

    class Event(torch.Event):
        pass

    assert type(Event(devices[0])) is Event
    assert torch.Event("cpu").device == torch.device("cpu")
    assert issubclass(Stream, torch.Stream)
    assert not isinstance(torch.Stream(devices[0]), Stream)


@pytest.mark.devices(2, distinct=True)
def test_event_belongs_to_the_device_of_its_first_record(devices):
    module = torch.get_device_module(devices[0])
    here, there = (module.Stream(device) for device in devices)
    begin, end, other = (module.Event(enable_timing=True) for _ in range(3))
    here.record_event(begin)
    other.record(there)
    with module.device(devices[0]):
        end.record()
    # CUDA prints the index as a character, whose zero ends the text.
    with pytest.raises(RuntimeError, match=r"^Event device (0 does not match .* device 1\.)?$"):
        begin.record(there)
    there.wait_event(begin)
    module.synchronize(devices[0])
    assert begin.elapsed_time(end) >= 0
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        begin.elapsed_time(other)
    plain = module.Event()
    here.record_event(plain)
    for pair in ((begin, plain), (plain, begin)):
        with pytest.raises(ValueError, match="enable_timing=True"):
            pair[0].elapsed_time(pair[1])


BLOCKS = {
    "device": lambda module, device: module.device(device),
    "accelerator": lambda module, device: torch.accelerator.device_index(device.index),
    "tensor": lambda module, device: module.device_of(torch.ones(1, device=device)),
}
WITHOUT_DEVICE = {
    "device": lambda module: module.device(-1),
    "accelerator": lambda module: torch.accelerator.device_index(None),
    "tensor": lambda module: module.device_of(torch.ones(1)),
}


@given(
    path=st.lists(
        st.tuples(st.sampled_from(sorted(BLOCKS)), st.integers(0, 7)), min_size=1, max_size=5
    )
)
def test_blocks_put_the_device_back(devices, path):
    """However deep, and whether a block ends well or by an error."""
    module = torch.get_device_module(devices[0])
    before = module.current_device()

    def deeper(rest):
        if not rest:
            raise KeyError("the innermost block fails")
        name, device = rest[0][0], place(rest[0][1], devices)
        with BLOCKS[name](module, device):
            assert module.current_device() == device.index
            with WITHOUT_DEVICE[name](module):
                assert module.current_device() == device.index
            try:
                deeper(rest[1:])
            finally:
                assert module.current_device() == device.index

    with pytest.raises(KeyError):
        deeper(path)
    assert module.current_device() == before


def within(context, make):
    with context:
        return make()


def load(x, map_location):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, map_location=map_location)


# What is asked of device type `kind`, given a tensor `x` that may lie anywhere.
WAYS = {
    "Module.kind": lambda x, kind: getattr(nn.Linear(1, 1), kind)().weight,
    "Module.to": lambda x, kind: nn.Linear(1, 1).to(kind).weight,
    "Module.to_empty": lambda x, kind: nn.Linear(1, 1).to_empty(device=kind).weight,
    "Tensor.kind": lambda x, kind: getattr(x, kind)(),
    "Tensor.new_zeros": lambda x, kind: x.new_zeros(2, device=kind),
    "Tensor.to": lambda x, kind: x.to(kind),
    "Tensor.to copy": lambda x, kind: x.to(device=kind, copy=True),
    "Tensor.to device": lambda x, kind: x.to(torch.device(kind)),
    "Tensor.to dtype": lambda x, kind: x.to(kind, torch.float64, non_blocking=True),
    "Tensor.to of no memory": lambda x, kind: x[:0].to(kind),
    "Tensor.to of pinned memory": lambda x, kind: x.cpu().pin_memory().to(kind),
    "Tensor.type": lambda x, kind: x.cpu().type(f"torch.{kind}.FloatTensor"),
    "UntypedStorage": lambda x, kind: torch.UntypedStorage(4, device=kind),
    "UntypedStorage.to": lambda x, kind: x.cpu().untyped_storage().to(device=kind),
    "aten.to": lambda x, kind: torch.ops.aten.to.device(x, torch.device(kind), torch.float16),
    "arange": lambda x, kind: torch.arange(3, device=kind),
    "as_tensor": lambda x, kind: torch.as_tensor([1.0], device=kind),
    "as_tensor of a tensor": lambda x, kind: torch.as_tensor(x, device=kind),
    "asarray": lambda x, kind: torch.asarray([1.0], device=kind),
    "context": lambda x, kind: within(torch.device(kind), lambda: torch.ones(2)),
    "context of tensor": lambda x, kind: within(torch.device(kind), lambda: torch.tensor([1.0])),
    "empty_like": lambda x, kind: torch.empty_like(x, device=kind),
    "load": load,
    "load to a device": lambda x, kind: load(x, torch.device(kind)),
    "nested": lambda x, kind: torch.nested.nested_tensor([x.cpu()], device=kind),
    "nn.Linear": lambda x, kind: nn.Linear(1, 1, device=kind).weight,
    "ones": lambda x, kind: torch.ones(2, device=kind),
    "packed": lambda x, kind: nn.utils.rnn.pack_sequence([x]).to(kind).data,
    "randn": lambda x, kind: torch.randn(2, device=kind),
    "sparse": lambda x, kind: torch.sparse_coo_tensor(
        [[0]], [1.0], (2,), device=kind, check_invariants=True
    ),
    "sparse to": lambda x, kind: x.to_sparse().to(kind),
    "tensor": lambda x, kind: torch.tensor([1.0], device=kind),
    "tril_indices": lambda x, kind: torch.tril_indices(2, 2, device=kind),
}


@pytest.mark.parametrize("way", sorted(WAYS))
@given(current=st.integers(0, 7), start=st.integers(-1, 7), other=st.integers(0, 7))
def test_no_index_means_the_current_device(devices, way, current, start, other):
    """Also where the tensor is on another device, and while another thread has another one."""
    wanted, elsewhere = place(current, devices), place(other, devices)
    module = torch.get_device_module(wanted)
    x = torch.ones(2, device=place(start, devices))

    def made():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*nested tensors is in prototype")
            return WAYS[way](x, wanted.type).device

    def made_in_thread():
        with module.device(elsewhere):
            return made()

    with module.device(wanted):
        assert made() == wanted
        assert in_thread(made_in_thread) == elsewhere
        assert made() == wanted
    assert made().index == module.current_device()


@given(slot=st.integers(0, 7), data=st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_new_tensors_of_a_tensor_are_on_its_device(devices, slot, data):
    device = place(slot, devices)
    x = torch.ones(2, device=device)
    assert plain(x.new(data)) == [float(item) for item in data]
    assert [x.new(data).device, x.new().device, x.new(3, 2).device, x.new(x).device] == [device] * 4
    assert plain(x.new_tensor(data)) == [float(item) for item in data]
    assert x.new_tensor(data).device == x.new_tensor(x.tolist()).device == device
    # PyTorch makes the tensor's device current for the call: there, no index means that one.
    assert x.new_tensor(data, device=device.type).device == device


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
