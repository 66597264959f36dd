"""NaN in what ranks give, where `TORCH_NCCL_NAN_CHECK` says to look for it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu.errors import NaNSentError
from tests.support import collectives
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")

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
