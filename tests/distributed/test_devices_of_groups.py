"""Which devices a group has: those that ProcessGroupNCCL would take, and none that it would not.

It has a communicator for each device that a rank has used, in which all ranks have to come.
"""

import contextlib
import functools
import re
import threading
import warnings

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu._distributed import nccl
from simgpu.errors import CollectiveMismatchError
from tests.support import collectives
from tests.support.worlds import few, schedules, unbound

SIZE = 3  # of a world
DEVICES = 4


def results(count, function, **named):
    """Of ranks that have more devices than they need."""
    with simgpu.as_cuda(DEVICES), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="barrier")
        return simgpu.ranks(count, unbound(function), **named)


def works_with_nccl(steps):
    """For each step whether all ranks are on devices of their own, and in one communicator."""
    for number, devices in enumerate(steps):
        since = {
            next(k for k, before in enumerate(steps) if before[rank] == device)
            for rank, device in enumerate(devices)
        }
        yield len(since) == 1 and (number not in since or len(set(devices)) == len(devices))


STEP = st.permutations(range(DEVICES)).map(lambda devices: tuple(devices[:SIZE]))
STEP = STEP | st.tuples(*[st.integers(0, 1)] * SIZE)


@few
@given(steps=st.lists(st.sampled_from([(0, 1, 2)]) | STEP, min_size=1, max_size=5), seed=schedules)
def test_ranks_change_devices_together_or_raise(steps, seed):
    def use(rank):
        for number, devices in enumerate(steps):
            x = torch.full((2,), rank + 1.0, device=f"cuda:{devices[rank]}")
            try:
                dist.all_reduce(x)
            except CollectiveMismatchError as error:
                return number, str(error)
            assert x.tolist() == [6.0, 6.0]
        return len(steps), ""

    wanted = next((k for k, works in enumerate(works_with_nccl(steps)) if not works), len(steps))
    for number, reported in results(SIZE, use, schedule=seed):
        assert number == wanted, reported
        if number < len(steps):
            new = (f"on the device cuda:{index} first used in call" for index in steps[number])
            assert "Duplicate GPU detected" in reported or any(each in reported for each in new)


@few
@given(
    named=st.none() | st.permutations(range(DEVICES)),
    bound=st.none() | st.permutations(range(DEVICES)),
    used=st.lists(st.permutations(range(DEVICES)), max_size=2),
    current=st.permutations(range(DEVICES)) | st.just([0] * SIZE),
    members=st.sampled_from([[0, 1, 2], [1, 2]]),
)
@example(
    named=None, bound=None, used=[[1, 2, 3, 0], [2, 3, 0, 1]], current=[0] * SIZE, members=[0, 1, 2]
)
@example(named=None, bound=None, used=[], current=[0] * SIZE, members=[1, 2])
def test_barrier_runs_on_the_device_that_nccl_chooses(named, bound, used, current, members):
    """Named, bound, used first, or by number: the current device, which many forget, is none."""
    steps = [*(used if bound is None else ()), *([named] if named else ())]
    assume(all(works_with_nccl([[devices[rank] for rank in members] for devices in steps])))

    def call(rank):
        group = dist.new_group(members)
        if rank not in members:
            return
        torch.cuda.set_device(current[rank])
        group.bound_device_id = None if bound is None else torch.device("cuda", bound[rank])
        if bound is None:
            for devices in used:
                dist.all_reduce(torch.ones(1, device=f"cuda:{devices[rank]}"), group=group)
        dist.barrier(group, device_ids=None if named is None else [named[rank]])

    with simgpu.trace() as trace:
        results(SIZE, call)
    found = [record.collective for record in trace if record.op.startswith("c10d.barrier")]
    first = used[0] if used and bound is None else range(DEVICES)
    wanted = named or bound or first
    assert {about.rank: about.index for about in found} == {rank: wanted[rank] for rank in members}


@few
@given(
    steps=st.lists(
        st.tuples(
            st.booleans(), st.lists(st.integers(0, DEVICES - 1), min_size=SIZE, max_size=SIZE)
        ),
        min_size=1,
        max_size=4,
    ),
    seed=schedules,
)
@example(steps=[(True, [0, 1, 2]), (False, [0, 0, 0])], seed=None)
def test_host_tensors_need_no_device(steps, seed):
    """They go by gloo. A thread of a rank, as that of `async_save`, is on device 0 at first."""

    def call(rank):
        for on_device, current in steps:
            torch.cuda.set_device(rank if on_device else current[rank])
            x = torch.ones(1, device="cuda" if on_device else "cpu")
            dist.all_reduce(x)
            assert x.item() == SIZE

    results(SIZE, call, backend="cpu:gloo,cuda:nccl", schedule=seed)


@pytest.mark.parametrize("name", ["all_reduce", "broadcast", "reduce", "all_gather", "send"])
def test_bound_group_refuses_other_devices(name):
    parts = [[torch.ones(1)] * 2] * 2

    def send(there):
        dist.send(there(torch.ones(1)), 1 - dist.get_rank())

    def call(rank):
        dist.group.WORLD.bound_device_id = torch.device("cuda", rank)
        dist.all_reduce(torch.ones(1, device="cuda"))
        there = functools.partial(torch.Tensor.cuda, device=rank + 2)
        with pytest.raises(RuntimeError) as raised:
            send(there) if name == "send" else collectives.begin(name, parts, place=there)
        if nccl.binds_to_one_device():
            reported = (
                f"is bound to device cuda:{rank} but an operation was issued on cuda:{rank + 2}"
            )
        else:
            reported = f"the tensor is on device {rank + 2}, and device_id said {rank}"
            assert isinstance(raised.value, dist.DistBackendError)
        assert reported in str(raised.value)
        return True

    assert results(2, call) == [True, True]


@given(current=st.integers(0, DEVICES - 1), count=st.integers(1, SIZE))
def test_newer_releases_bind_a_group_to_the_device_of_the_rank(current, count):
    """The current device, which a program may have set, is not asked."""

    def bound(rank):
        torch.cuda.set_device(current)
        return dist.new_group(range(count)).bound_device_id

    with simgpu.as_cuda(DEVICES):
        found = simgpu.ranks(count, bound)
    known = nccl.binds_to_one_device()
    assert found == [torch.device("cuda", rank) if known else None for rank in range(count)]


PAIRS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=3)


@few
@given(batched=st.booleans(), steps=PAIRS, seed=schedules)
@example(batched=False, steps=[(0, 1), (0, 0)], seed=None)
@example(batched=True, steps=[(0, 1), (0, 0)], seed=None)
def test_two_ranks_send_between_devices_of_their_own(batched, steps, seed):
    """NCCL makes a communicator for the two of them, or takes that of the group."""

    def call(rank):
        for number, devices in enumerate(steps):
            x = torch.full((2,), number + 10.0 * rank, device=f"cuda:{devices[rank]}")
            try:
                if batched:
                    step = dist.P2POp(dist.irecv if rank else dist.isend, x, 1 - rank)
                    dist.batch_isend_irecv([step])[0].wait()
                else:
                    dist.recv(x, 0) if rank else dist.send(x, 1)
            except CollectiveMismatchError as error:
                return number, "Duplicate GPU detected" in str(error)
            assert x.tolist() == [number] * 2
        return None, False

    shared = next((k for k, (one, other) in enumerate(steps) if one == other), None)
    assert results(2, call, schedule=seed) == [(shared, shared is not None)] * 2


def sort_of(rank):
    dist.barrier(device_ids=[rank])
    sort = torch.cuda.get_device_properties(rank)
    return sort.name, sort.total_memory


def test_new_devices_have_the_requested_model_and_memory():
    reported = simgpu.ranks(2, sort_of, model="A100", memory=["1GiB", "2GiB"])
    assert reported == [("NVIDIA A100-SXM4-40GB", size << 30) for size in (1, 2)]


def test_new_devices_have_the_requested_generator():
    def drawn(rank):
        torch.manual_seed(0)
        return torch.rand(4, device="cuda").tolist()

    [cuda], [host] = (simgpu.ranks(1, drawn, rng=rng) for rng in ("cuda", "host"))
    assert cuda != host
    assert cuda == simgpu.ranks(1, drawn)[0]


def test_world_waits_for_a_world_of_another_thread():
    """Each has its fresh devices."""
    within, calls, found = threading.Event(), threading.Event(), []

    def second():
        within.wait()
        calls.set()
        found.append(simgpu.ranks(3, lambda rank: torch.cuda.device_count()))

    def first(rank):
        within.set()
        calls.wait()
        return torch.cuda.device_count()

    thread = threading.Thread(target=second)
    thread.start()
    assert simgpu.ranks(2, first) == [2, 2]
    thread.join()
    assert found == [[3, 3, 3]]


def test_ranks_of_gloo_have_devices_by_their_own_name():
    def total(rank):
        x = torch.ones(1, device=f"simgpu:{rank}")
        dist.all_reduce(x)
        return x.item()

    with simgpu.devices(2):
        assert simgpu.ranks(2, total, backend="gloo") == [2.0, 2.0]


@pytest.mark.parametrize(
    ("block", "named", "error", "text"),
    [
        (simgpu.devices, {}, RuntimeError, "'nccl' needs devices that are used as CUDA"),
        (simgpu.devices, {"backend": "cpu:gloo,cuda:nccl"}, RuntimeError, "simgpu.as_cuda(n)"),
        (contextlib.nullcontext, {"model": "Z9"}, ValueError, "Z9"),
        (contextlib.nullcontext, {"memory": "much"}, ValueError, "much"),
        (contextlib.nullcontext, {"rng": "dice"}, ValueError, "dice"),
        (simgpu.as_cuda, {"model": "A100"}, ValueError, "model='A100' only applies to new"),
        (simgpu.as_cuda, {"rng": "host"}, ValueError, "rng='host' only applies to new devices"),
    ],
)
def test_impossible_devices_of_a_world_are_refused(block, named, error, text):
    with block(2), pytest.raises(error, match=re.escape(text)):
        simgpu.ranks(2, sort_of, **named)
