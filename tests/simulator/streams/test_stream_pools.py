"""Streams are handed out of pools: how many a device has, and which priorities there are."""

import torch
from hypothesis import given
from hypothesis import strategies as st

POOL = 32  # streams of each priority, as PyTorch has on CUDA


@given(index=st.integers(0, 1), priority=st.integers(-6, 3), more=st.integers(0, 40))
def test_the_33rd_stream_is_the_first_one_again(simulated, index, priority, more):
    count = POOL + more
    streams = [torch.simgpu.Stream(index, priority) for _ in range(count)]
    assert len({stream.stream_id for stream in streams}) == POOL
    assert all(streams[k] == streams[k + POOL] for k in range(more))
    assert {stream.priority for stream in streams} == {max(-3, min(priority, 0))}
    assert {stream.device_index for stream in streams} == {index}
    assert torch.simgpu.Stream.priority_range() == (0, -3)


@given(priorities=st.lists(st.integers(-3, 0), min_size=1, max_size=9))
def test_each_priority_and_device_has_streams_of_its_own(simulated, priorities):
    """Made by either class; the numbers are those of PyTorch (c10/cuda/CUDAStream.cpp)."""
    known = {}
    for priority in priorities:
        for kind in (torch.simgpu.Stream, torch.Stream):
            stream = kind(device=simulated[0], priority=priority)
            assert stream.stream_id % 32 == 3 - 2 * priority
            known.setdefault(stream.stream_id, set()).add(priority)
    assert all(len(found) == 1 for found in known.values())
    other = torch.simgpu.Stream(1)
    assert {other.cuda_stream, other.native_handle}.isdisjoint(
        torch.simgpu.Stream(0).cuda_stream for _ in range(POOL)
    )


def test_default_streams_have_no_priority(simulated):
    for device in simulated:
        stream = torch.simgpu.default_stream(device)
        assert (stream.stream_id, stream.priority, stream.cuda_stream) == (0, 0, 0)
