"""Current devices and streams: each thread has its own, and blocks put them back."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.observe import place
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
