"""Streams have segments of their own, and `record_stream` keeps memory until they are done."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import clock, streams
from simgpu._core.by_address import ByAddress
from tests.support.instruments import StoppedClock

MIB = 2**20
AMOUNTS = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")


def amounts():
    stats = torch.simgpu.memory_stats(0)
    return [stats[f"{name}.all.current"] for name in AMOUNTS]


def empty(nbytes, stream=None):
    with torch.simgpu.stream(stream):
        return torch.empty(nbytes, dtype=torch.uint8, device="simgpu:0")


@given(nbytes=st.integers(1, 3 * MIB), wait=st.sampled_from(["allocate", "empty_cache"]))
def test_dropped_memory_is_active_until_an_allocation_finds_its_users_done(nbytes, wait):
    block = -(-nbytes // 512) * 512
    with simgpu.devices(1, memory="1GiB"):
        x = empty(nbytes)
        x.record_stream(torch.simgpu.current_stream(0))  # its own: nothing to wait for
        x[:1].view(1, 1).record_stream(torch.simgpu.Stream(0))
        reserved = torch.simgpu.memory_reserved(0)
        del x
        assert amounts() == [0, block, reserved, nbytes]
        (segment,) = torch.simgpu.memory_snapshot()
        assert segment["blocks"][0]["state"] == "active_pending_free"
        if wait == "allocate":
            held = empty(nbytes)
            assert amounts() == [block, block, reserved, nbytes]
            del held
        else:
            torch.simgpu.empty_cache()
        assert amounts()[:2] == [0, 0]


def test_memory_that_a_sleeping_stream_uses_goes_to_no_allocation():
    with simgpu.devices(1), clock.use(StoppedClock()):
        stream, x, y = torch.simgpu.Stream(0), empty(30 * MIB), empty(5)
        x.record_stream(stream)
        with torch.simgpu.stream(stream):
            streams.sleep(3.0)
        del x
        held = empty(30 * MIB)
        assert torch.simgpu.memory_reserved(0) == 62 * MIB
        del held
        stream.synchronize()
        held = [empty(30 * MIB) for _ in range(2)]
        assert torch.simgpu.memory_reserved(0) == 62 * MIB
        del held, y


@given(data=st.data())
def test_uses_are_known_of_tensors_from_before_and_after_the_first_one(data):
    """Those that live when `record_stream` is first called, and those that come later."""
    with simgpu.devices(1, memory="1GiB"):
        stream, held, recorded = torch.simgpu.Stream(0), [], set()
        for number in range(data.draw(st.integers(1, 12))):
            held.append(empty(512))
            if data.draw(st.booleans()):
                held[-1].record_stream(stream)
                recorded.add(number)
        for number in range(len(held)):
            if data.draw(st.booleans()) and number not in recorded:
                held[number].record_stream(stream)
                recorded.add(number)
        held.clear()
        assert amounts()[:2] == [0, 512 * len(recorded)]


def test_threads_take_turns_in_the_table_of_uses(monkeypatch):
    """Replicas allocate at the same time, and `Scatter` of torch records uses of their batch."""
    stock, inside, seen, start = ByAddress.overlapping, [], set(), threading.Barrier(4)

    def overlapping(self, begin, end):
        inside.append(begin)
        for _ in range(20_000):  # and after one of them another thread runs
            seen.add(len(inside))
        inside.pop()
        return stock(self, begin, end)

    def allocate(nbytes):
        start.wait()
        for _ in range(20):
            empty(nbytes)

    interval = sys.getswitchinterval()
    with simgpu.devices(1), ThreadPoolExecutor(4) as threads:
        empty(512).record_stream(torch.simgpu.Stream(0))
        monkeypatch.setattr(ByAddress, "overlapping", overlapping)
        sys.setswitchinterval(1e-6)
        try:
            list(threads.map(allocate, [1, 600, 1200, 1800]))
        finally:
            sys.setswitchinterval(interval)
    assert seen == {1}
