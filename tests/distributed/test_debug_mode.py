"""`TORCH_DISTRIBUTED_DEBUG` and `TORCH_NCCL_NAN_CHECK`: what they wrap, log and look for."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu._distributed import nccl
from simgpu.errors import NaNSentError
from tests.support import collectives, rank_cases, rank_processes
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


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_NAN_CHECK", "1")


def send(parts):
    rank = dist.get_rank()
    if rank < 2:
        x = parts[rank][0].cuda()
        dist.recv(x, 0) if rank else dist.send(x, 1)


@pytest.mark.parametrize("name", [*collectives.CALLS, "send"])
@few
@given(count=strategies.world_sizes(2, 4), at=st.integers(0, 3), data=st.data(), seed=schedules)
def test_nan_error_names_the_rank(name, count, at, data, seed):
    # PyTorch broadcasts float8 as bytes, in which nobody looks for NaN.
    narrow = [] if "reduce" in name or name == "broadcast" else FLOAT8
    dtype = data.draw(st.sampled_from(FLOATS + narrow))
    gives = data.draw(st.integers(0, count - 1))

    def ask(rank):
        parts = [[torch.zeros(4)] * count for _ in range(count)]
        parts[gives] = [torch.zeros(4).index_fill(0, torch.tensor(at), float("nan"))] * count
        parts = [[x.to(dtype) for x in row] for row in parts]
        send(parts) if name == "send" else collectives.begin(name, parts)

    if name in ("broadcast", "scatter", "send") and gives > 0:
        simgpu.ranks(count, ask, schedule=seed)
        return
    text = rf"assert triggered: rank {gives} gives NaN, at index \({at},\) of .* to {name}"
    with pytest.raises(NaNSentError, match=text):
        simgpu.ranks(count, ask, schedule=seed)


@few
@given(count=strategies.world_sizes(1, 4), seed=schedules)
def test_pending_results_are_not_reported_as_nan(count, seed):
    def add_twice(rank):
        x = torch.ones(3, device="cuda")
        for work in [dist.all_reduce(x, async_op=True) for _ in range(2)]:
            work.wait()
        return x.tolist()

    assert simgpu.ranks(count, add_twice, schedule=seed) == [[float(count**2)] * 3] * count


@pytest.mark.parametrize(
    ("backend", "value"), [("nccl", ""), ("nccl", "0"), ("nccl", "no"), ("gloo", "1")]
)
def test_nan_check_runs_only_in_nccl_when_enabled(backend, value, monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_NAN_CHECK", value)

    def add(rank):
        x = torch.full((2,), float("nan"), device="cuda")
        dist.all_reduce(x)
        return x.isnan().all().item()

    assert simgpu.ranks(2, add, backend=backend) == [True] * 2


@pytest.mark.parametrize("value", ["1", "0"])
def test_nan_check_of_a_backend_can_be_switched(value, monkeypatch):
    monkeypatch.setenv("TORCH_NCCL_NAN_CHECK", value)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        backend = dist.group.WORLD._get_backend(torch.device("cuda"))
        x = torch.full((2,), float("nan"), device="cuda")
        asked = value == "1"
        for looks in (asked, not asked):
            if looks != asked:
                backend._set_enable_nan_check(looks)
            if looks:
                with pytest.raises(NaNSentError, match="rank 0 gives NaN"):
                    dist.all_reduce(x)
            else:
                dist.all_reduce(x)
    finally:
        dist.destroy_process_group()
