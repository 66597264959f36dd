"""Pools of streams, and blocks: `with stream:`, and `with torch.cuda.stream(stream):`.

With PyTorch's own on CUDA, what is put back by `with stream:` is kept in the stream, once: these
tests do not hold there.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import world
from tests.support.threads import in_thread

# Who does it, what is entered (None: the innermost block ends, or one that has not begun), whether
# it ends by an error, and whether anybody looks at what is current then.
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.none() | st.integers(0, 5), st.booleans(), st.booleans()),
    max_size=12,
)
INDICES = range(2)  # of the devices whose streams are looked at


def current():
    """The calling thread's device, and its stream of each with what only that object knows."""
    streams = [torch.simgpu.current_stream(i) for i in INDICES]
    return torch.simgpu.current_device(), [(each, each.priority) for each in streams]


@given(steps=STEPS)
def test_each_beginning_of_a_block_is_put_back_in_its_thread(simulated, steps):
    """However deep one block or stream is entered, and whoever else is in it meanwhile."""
    streams = [torch.simgpu.Stream(index, priority=-1) for index in (0, 1, 1)]
    blocks = [*streams, *map(torch.simgpu.stream, streams)]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        pools = one, other
        other.submit(torch.simgpu.set_device, 1).result()
        first = [(torch.simgpu.default_stream(index), 0) for index in INDICES]
        seen = [[(number, first)] for number in range(2)]  # before each open block
        entered = [[] for _ in pools]
        ends = [(who, None, False, True) for who in (0, 1) for _ in (None, *steps)]
        for who, which, fails, looked in [*steps, *ends]:
            if which is not None:
                pools[who].submit(blocks[which].__enter__).result()
                stream = streams[which % 3]
                mine = [*seen[who][-1][1]]
                mine[stream.device_index] = stream, stream.priority
                seen[who].append((stream.device_index, mine))
                entered[who].append(blocks[which])
            else:
                block = entered[who].pop() if entered[who] else blocks[0]
                error = (KeyError, KeyError(), None) if fails else (None, None, None)
                ended = pools[who].submit(block.__exit__, *error)
                assert not ended.result()
                if len(seen[who]) > 1:
                    seen[who].pop()
            for pool, states in zip(pools, seen, strict=True):
                if looked:
                    assert pool.submit(current).result() == states[-1]


def test_stream_of_the_cpu_is_refused_and_changes_nothing(simulated):
    before = current()
    with pytest.raises(ValueError, match="simgpu"), torch.simgpu.stream(torch.Stream("cpu")):
        pass
    assert current() == before


def test_a_block_that_ends_in_another_thread_changes_nothing_there(simulated):
    """As that of a generator does, which is closed by somebody else."""
    block = torch.simgpu.stream(torch.simgpu.Stream(1))
    in_thread(block.__enter__)
    before = current()
    block.__exit__(None, None, None)
    assert current() == before


def test_a_stream_of_a_device_out_of_reach_changes_nothing():
    with simgpu.devices(2):
        stream = torch.simgpu.Stream(1)
        before = current()
        with world.limited_to(1), pytest.raises(RuntimeError):
            stream.__enter__()
        assert current() == before


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
