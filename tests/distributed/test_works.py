"""Works: until when they and their outputs live, in a world and after it."""

import contextlib
import functools
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
from simgpu import strategies
from simgpu._distributed import groups, works
from simgpu._distributed.collectives import Call
from simgpu._distributed.works import Pending, Work, drop_unused, keep_alive_with_outputs
from simgpu.errors import CollectiveMismatchError, DeadlockError, RankLostError
from tests.support.worlds import few, schedules

# Newer releases have other names for two of them.
pytestmark = [
    pytest.mark.usefixtures("eight_devices"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
]


@few
@given(
    count=strategies.world_sizes(1, 4),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    data=st.data(),
    seed=schedules,
)
def test_functional_collectives_of_several_tensors_wait_for_each(count, sizes, kind, data, seed):
    orders = [data.draw(st.permutations(range(len(sizes)))) for _ in range(count)]
    by_rank = [
        [torch.arange(float(size * count)) + rank for size in sizes] for rank in range(count)
    ]
    sums = [functools.reduce(torch.add, parts) for parts in zip(*by_rank, strict=True)]

    def call(rank):
        group, mine = dist.group.WORLD, [part.cuda() for part in by_rank[rank]]
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        if kind == "all_reduce":
            outs, wanted = functional.all_reduce_coalesced(mine, "sum", group), sums
        elif kind == "all_gather":
            outs = functional.all_gather_into_tensor_coalesced(mine, group)
            wanted = [torch.cat(parts) for parts in zip(*by_rank, strict=True)]
        else:
            dims = [0] * len(sizes)
            outs = functional.reduce_scatter_tensor_coalesced(mine, "sum", dims, group)
            wanted = [each.chunk(count)[rank] for each in sums]
        for which in orders[rank]:
            assert torch.equal(outs[which].cpu(), wanted[which])
        outs = None
        assert torch.cuda.memory_allocated() == before
        return len(groups.find(group).open)

    assert simgpu.ranks(count, call, schedule=seed) == [0] * count


@given(count=st.integers(1, 4), again=st.integers(1, 3))
def test_work_lives_as_long_as_its_outputs(count, again):
    """C++ holds half of it, which would wait for ever by itself."""
    kept, gone = set(), []
    outputs = [torch.ones(2) for _ in range(count)]
    pending = Pending(Call("all_reduce", "all_reduce", [], []))
    pending.finish()
    work = Work([pending], list(outputs), kept)
    weakref.finalize(work, gone.append, True)
    boxed = work.boxed()
    del work, pending
    for _ in range(again if count > 1 else 1):
        assert not gone, "who waits for the next output would wait for ever"
        assert dist.Work.unbox(boxed).wait()
        assert not kept
    assert bool(gone) == (count == 1)
    assert gone or dist.Work.unbox(boxed).result() == outputs
    outputs.clear()
    assert gone


@few
@given(
    count=strategies.world_sizes(2, 4),
    kinds=st.lists(st.sampled_from(["sum", "send", "wait"]), min_size=1, max_size=6),
    waits=st.booleans(),
    seed=schedules,
)
def test_dropped_work_keeps_no_memory(count, kinds, waits, seed):
    """Once the device has been waited for, or a later call: nobody can wait for it any more."""

    def call(rank):
        x = torch.ones(300, device="cuda")
        before = torch.cuda.memory_allocated()
        for kind in kinds:
            if kind == "send":
                dist.isend(x.clone(), (rank + 1) % count)
                dist.recv(torch.empty_like(x), (rank - 1) % count)
            else:
                work = dist.all_reduce(x.clone(), async_op=True)
                if kind == "wait":
                    work.wait()
                del work
        last = dist.all_reduce(x, async_op=True)
        wait = last.wait if waits else torch.cuda.synchronize
        del last
        wait()
        del wait
        # At once: a program may call no other collective for long.
        assert "send" in kinds or not groups.find(dist.group.WORLD).open
        dist.all_reduce(torch.ones(1, device="cuda"))
        again = dist.isend(x, (rank + 1) % count)  # which lets go of the sends before it
        dist.recv(torch.empty_like(x), (rank - 1) % count)
        again.wait()
        assert x[0].item() == count
        return torch.cuda.memory_allocated() - before, len(groups.find(dist.group.WORLD).open)

    assert simgpu.ranks(count, call, schedule=seed) == [(0, 0)] * count


@given(count=st.integers(1, 3), later=st.integers(1, 3), reported=st.booleans())
def test_works_held_only_by_cpp_last_as_long_as_their_outputs(count, later, reported):
    """The Reducer reads such an output in its backward pass, when there are uneven inputs."""
    kept, gone, pending = set(), [], Pending(Call("all_reduce", "all_reduce", [], []))
    work = Work([pending], [torch.full((2,), float(each)) for each in range(count)], kept)
    weakref.finalize(work, gone.append, True)
    boxed = work.boxed()
    pending.finish()
    del work, pending
    for _ in range(later):
        drop_unused(kept)
        assert len(dist.Work.unbox(boxed).result()) == count
    del boxed
    with pytest.MonkeyPatch.context() as patch:
        if not reported:  # as where C++ counts its references elsewhere
            patch.setattr(works, "held_by_cpp", lambda work: True)
        drop_unused(kept)
    assert bool(gone) == (not kept) == reported


@few
@given(count=st.integers(3, 40))
def test_sends_without_a_wait_are_forgotten(count):
    """They are over one after the other, and none of them keeps those before."""
    previous, gone = None, []
    for number in range(count):
        pending = Pending(Call("send", "send", [], []), previous)
        weakref.finalize(pending, gone.append, number)
        if previous is not None:
            previous.finish()  # it was on its way when the next one began
        previous = pending
    del pending
    assert gone == list(range(count - 2))


@given(data=st.data(), count=st.integers(2, 3))
def test_work_of_several_calls_is_kept_until_wait(data, count):
    """It waits for each of them then. To have waited for one is not to have waited for all."""
    calls = [Pending(Call("send", f"send {number}", [], [])) for number in range(count)]
    kept = set()
    for pending in calls:
        pending.finish()
    single, together = [Work([each], [], kept) for each in calls], Work(calls, [], kept)
    first = data.draw(st.lists(st.sampled_from(single), unique=True, max_size=count))
    for work in first:
        work.wait()
    assert kept == {*single, together}.difference(first)
    together.wait()
    assert not kept


@given(count=st.integers(1, 3), held=st.booleans())
def test_works_of_an_ended_group_live_as_long_as_their_outputs(count, held):
    """Only those that C++ holds: no caller can wait for the others."""
    kept, gone, pending = set(), [], Pending(Call("all_reduce", "all_reduce", [], []))
    outputs = [torch.ones(2) for _ in range(count)]
    work = Work([pending], list(outputs), kept)
    weakref.finalize(work, gone.append, True)
    boxed = work.boxed() if held else None
    del work
    keep_alive_with_outputs(kept)
    assert not kept
    assert bool(gone) is not held
    outputs.clear()
    assert gone
    del boxed


@few
@given(count=strategies.world_sizes(2, 4), ends=st.integers(0, 3), seed=schedules)
def test_a_rank_that_ends_releases_its_own_works_only(count, ends, seed):
    def call(rank):
        work = dist.all_reduce(torch.ones(2, device="cuda"), async_op=True)
        mine = groups.find(dist.group.WORLD).open
        dist.barrier(device_ids=[rank])
        if rank == ends % count:
            groups.release()
            assert not mine
        dist.barrier(device_ids=[rank])
        assert bool(mine) is (rank != ends % count)
        dist.barrier(device_ids=[rank])
        work.wait()

    simgpu.ranks(count, call, schedule=seed)


# What is left of a world of ranks that has ended.


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

    with without_collector():
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
    made = weakref.WeakSet()
    make = Work.__init__

    def noted(self, *arguments):
        make(self, *arguments)
        made.add(self)

    def run(rank):
        return FUNCTIONAL[name](torch.ones(2, device="cuda"))

    with without_collector():
        with mock.patch.object(Work, "__init__", noted):
            found = simgpu.ranks(count, run, schedule=seed)
        gc.collect()
        assert len(made) == count, "of those that are gone, C++ waits for ever"
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

    with pytest.raises(KeyError):
        simgpu.ranks(2, step)
    (work,) = kept
    assert not asks or work.is_completed()
    with pytest.raises(RankLostError, match="its world has ended"):
        work.wait()
