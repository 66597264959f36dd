"""Collectives within `torch.inference_mode`, and on tensors that were made there."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from tests.support import rank_processes
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.filterwarnings("ignore:barrier")


def add_in_modes(rank, modes):
    """Sums of one tensor, each with a mode to make it in, to call in and to wait in."""
    found = []
    for number, (made, called, waited, asynchronous) in enumerate(modes):
        with torch.inference_mode(made):
            x = torch.full((3,), float(rank + number), device="cuda")
        with torch.inference_mode(called):
            work = dist.all_reduce(x, async_op=asynchronous)
        with torch.inference_mode(waited):
            if asynchronous:
                work.wait()
        found.append((x.tolist(), x.is_inference()))
    return found


def expected(count, modes):
    total = sum(range(count))
    return [[([float(total + count * i)] * 3, made) for i, (made, *_) in enumerate(modes)]] * count


MODES = st.lists(st.tuples(*[st.booleans()] * 4), min_size=1, max_size=4)


@few
@given(count=strategies.world_sizes(1, 4), modes=MODES, seed=schedules)
def test_a_call_knows_no_inference_mode(count, modes, seed):
    found = simgpu.ranks(count, lambda rank: add_in_modes(rank, modes), schedule=seed)
    assert found == expected(count, modes)


@pytest.mark.full
def test_processes_call_in_any_mode():
    modes = [(i < 4, i % 4 < 2, i % 2 < 1, asked) for i in range(8) for asked in (True, False)]
    assert rank_processes.run(2, add_in_modes, modes) == expected(2, modes)
