"""What is left of a world of ranks that ended with an error."""

import contextlib
import gc
import sys

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu.errors import CollectiveMismatchError, DeadlockError, RankLostError
from tests.support.worlds import few, schedules


@contextlib.contextmanager
def without_collector():
    """Within the block, what leads to itself stays."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@few
@given(
    count=st.integers(2, 4),
    size=st.integers(1, 300),
    failing=st.integers(0, 3),
    by=st.sampled_from(
        ("an error of its own", "an error after its call", "sys.exit", "an end", "another size")
    ),
    held=st.booleans(),
    receives=st.booleans(),
    late=st.booleans(),
    seed=schedules,
)
@example("an error of its own", 2, 1, 1, True, True, True, None)
@example("an error of its own", 2, 1, 1, True, False, False, None)
@example("an error after its call", 2, 1, 1, True, False, True, None)
def test_calls_that_fail_keep_no_memory(by, count, size, failing, held, receives, late, seed):
    """A Work of several outputs lives until these are gone; no error of its ranks keeps them.

    Nor does a call that nobody has waited for, which receives into one of them. Nor does any of it
    wait for the garbage collector, once the program has dropped the error.
    """

    def step(rank):
        mine = torch.ones(size + (rank == failing % count), device="cuda")
        if rank == failing % count and by == "an error of its own":
            raise KeyError(rank)
        if rank == failing % count and by == "sys.exit":
            sys.exit("words")
        if rank == failing % count and by == "an end":
            return
        outputs = [torch.empty_like(mine) for _ in range(count)]
        if receives:
            dist.irecv(outputs[failing % count], failing % count)
        if not late:
            dist.all_gather(outputs, mine)
        work = dist.all_gather(outputs, mine, async_op=True)
        if not held:
            del outputs
        if rank == failing % count and by == "an error after its call":
            raise KeyError(rank)
        work.wait()

    with simgpu.as_cuda(count), without_collector():
        try:
            simgpu.ranks(count, step, schedule=seed)
        except (KeyError, SystemExit, CollectiveMismatchError, DeadlockError):
            pass
        else:
            raise AssertionError("one of the ranks fails")
        assert [torch.cuda.memory_allocated(index) for index in range(count)] == [0] * count


CALLS = {
    "all_reduce": lambda x: dist.all_reduce(x, async_op=True),
    "isend": lambda x: dist.isend(x, 1),
    "irecv": lambda x: dist.irecv(x, 1),
}


@few
@given(name=st.sampled_from(sorted(CALLS)), asks=st.booleans())
@example(name="irecv", asks=False)
def test_who_waits_for_a_call_after_its_world_is_told_that_it_has_ended(name, asks):
    kept = []

    def step(rank):
        if rank == 1:
            raise KeyError(rank)
        kept.append(CALLS[name](torch.ones(3, device="cuda")))

    with simgpu.as_cuda(2):
        with pytest.raises(KeyError):
            simgpu.ranks(2, step)
        (work,) = kept
        assert not asks or work.is_completed()
        with pytest.raises(RankLostError, match="its world has ended"):
            work.wait()
