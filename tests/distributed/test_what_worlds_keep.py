"""What is left of a world of ranks that ended with an error."""

import contextlib
import gc
import sys
import weakref
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist
from torch.distributed import _functional_collectives as functional

import simgpu
from simgpu._distributed.works import Work
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


FUNCTIONAL = {
    "one output": lambda x: [functional.all_reduce(x, "sum", dist.group.WORLD)],
    "many outputs": lambda x: functional.all_reduce_coalesced([x, x + 1], "sum", dist.group.WORLD),
}


@few
@given(name=st.sampled_from(sorted(FUNCTIONAL)), count=st.integers(1, 3), seed=schedules)
def test_returned_works_complete_after_the_world(name, count, seed):
    """C++ has the C++ half of a Work, which by itself would wait for ever."""
    works = weakref.WeakSet()
    make = Work.__init__

    def noted(self, *arguments):
        make(self, *arguments)
        works.add(self)

    def run(rank):
        return FUNCTIONAL[name](torch.ones(2, device="cuda"))

    with simgpu.as_cuda(count), without_collector():
        with mock.patch.object(Work, "__init__", noted):
            found = simgpu.ranks(count, run, schedule=seed)
        gc.collect()
        assert len(works) == count, "of those that are gone, C++ waits for ever"
        for outputs in found:
            sums = [output.tolist() for output in outputs]
            assert sums == [[count * (1.0 + each)] * 2 for each in range(len(outputs))]
        found = outputs = None
        assert [torch.cuda.memory_allocated(index) for index in range(count)] == [0] * count


CALLS = {
    "all_reduce": lambda x: dist.all_reduce(x, async_op=True),
    "isend": lambda x: dist.isend(x, 1),
    "irecv": lambda x: dist.irecv(x, 1),
}


@few
@given(name=st.sampled_from(sorted(CALLS)), asks=st.booleans())
@example(name="irecv", asks=False)
def test_wait_after_world_end_raises(name, asks):
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
