"""`TORCH_DISTRIBUTED_DEBUG`: PyTorch wraps the backends of groups, and logs what objects hold."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu._distributed import nccl
from tests.support import rank_cases, rank_processes
from tests.support.worlds import few, schedules

pytestmark = [
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
]

LEVELS = sorted(dist.DebugLevel.__members__)


@contextlib.contextmanager
def debugging(name):
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.__members__[name])
    try:
        yield
    finally:
        dist.set_debug_level(before)


@pytest.mark.parametrize("case", rank_cases.CASES)
@few
@given(
    level=st.sampled_from(LEVELS),
    count=strategies.world_sizes(2, 4),
    number=st.integers(0, 9),
    seed=schedules,
)
def test_collectives_are_the_same_at_every_level(case, level, count, number, seed):
    call = rank_cases.CASES[case]
    with debugging(level):
        simgpu.ranks(count, lambda rank: call((2,), torch.float32, number, False), schedule=seed)


@pytest.mark.full
@pytest.mark.parametrize("level", LEVELS)
def test_new_groups_are_split_at_every_level(level):
    """`new_group` splits a group of one device: what debug mode has wrapped is split."""
    found = rank_processes.run(3, rank_cases.new_groups, bound=True, debug=level)
    assert found == [[3], [3, 5], [5]]


@pytest.mark.parametrize("level", LEVELS)
def test_differing_calls_raise_at_every_debug_level(level):
    def differ(rank):
        dist.all_reduce(torch.ones(2 + rank, device="cuda"))

    with debugging(level), pytest.raises(simgpu.errors.CollectiveMismatchError):
        simgpu.ranks(2, differ)


@given(
    parts=st.lists(st.lists(st.integers(0, 255), max_size=5), max_size=3),
    changed=st.data(),
    devices=st.tuples(*[st.sampled_from(["cpu", "cuda:0", "cuda:1"])] * 2),
)
def test_hash_depends_on_bytes_only(parts, changed, devices):
    def hashed(values, device):
        tensors = [torch.tensor(each, dtype=torch.uint8).to(device) for each in values]
        return torch._C._distributed_c10d._hash_tensors(tensors)

    found = hashed(parts, devices[0])
    assert found == hashed(parts, devices[1]) == nccl.hash_of_tensors(map(torch.ByteTensor, parts))
    filled = [index for index, part in enumerate(parts) if part]
    assert (found == 0) == (not filled)
    assert 0 <= found < 2**64
    if filled:
        index = changed.draw(st.sampled_from(filled))
        place = changed.draw(st.integers(0, len(parts[index]) - 1))
        parts[index][place] ^= changed.draw(st.integers(1, 255))
        assert hashed(parts, devices[0]) != found


@given(count=st.integers(1, 6), data=st.data())
def test_hash_covers_all_memory_under_a_tensor(count, data):
    whole = torch.arange(float(count), device="cuda")
    first = data.draw(st.integers(0, count - 1))
    part = whole[first : data.draw(st.integers(first + 1, count))]
    assert nccl.hash_of_tensors([part]) == nccl.hash_of_tensors([whole])
    assert nccl.hash_of_tensors([whole[first:first]]) == 0  # as in PyTorch: it has no elements
