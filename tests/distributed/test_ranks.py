"""`simgpu.ranks`: worlds of ranks in threads, what they are given, and what goes wrong in them."""

import os
import re
import sys
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist
from torch.distributed import c10d_logger

import simgpu
from simgpu import strategies
from simgpu.errors import CollectiveMismatchError, DeadlockError, SimGPUError
from tests.support import collectives, rank_cases
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")


@few
@given(count=strategies.world_sizes(), seed=schedules)
def test_each_rank_knows_itself(count, seed):
    def rank_of_torchrun(rank):
        assert dist.get_rank() == rank == int(os.environ["RANK"]) == torch.cuda.current_device()
        assert dist.get_world_size() == count == int(os.environ["WORLD_SIZE"])
        dist.barrier(device_ids=[rank])
        assert os.environ["LOCAL_RANK"] == str(rank)
        return rank

    assert simgpu.ranks(count, rank_of_torchrun, schedule=seed) == list(range(count))


@few
@given(count=strategies.world_sizes(2, 5), data=st.data(), seed=schedules)
def test_early_end_of_a_rank_is_a_deadlock(count, data, seed):
    left = data.draw(st.integers(0, count - 1))

    def leave(rank):
        dist.barrier(device_ids=[rank])
        if rank != left:
            dist.all_reduce(torch.ones(3, device="cuda"))

    with pytest.raises(DeadlockError) as raised:
        simgpu.ranks(count, leave, schedule=seed)
    text = str(raised.value)
    assert f"rank {left} has ended" in text
    for rank in set(range(count)) - {left}:
        waits = rf"rank {rank} waits for all_reduce float32 \(3,\) SUM at .*test_ranks.py:\d+"
        assert re.search(waits, text), text


@few
@given(
    count=strategies.world_sizes(2, 4),
    first=st.integers(0, 1),
    sends=st.booleans(),
    batched=st.booleans(),
    seed=schedules,
)
def test_cycle_of_sends_or_receives_is_a_deadlock(count, first, sends, batched, seed):
    """Which is told with who sends to whom, by their numbers in the world."""
    step, begin, word = (
        (dist.send, dist.isend, "send") if sends else (dist.recv, dist.irecv, "recv")
    )

    def call(rank):
        group = dist.new_group(range(first, first + count))
        if rank >= first:
            x, peer = torch.ones(3, device="cuda"), first + (rank - first + 1) % count
            if batched:
                dist.batch_isend_irecv([dist.P2POp(begin, x, peer, group)])[0].wait()
            else:
                step(x, peer, group=group)

    with pytest.raises(DeadlockError) as raised:
        simgpu.ranks(first + count, call, schedule=seed)
    for rank in range(first, first + count):
        peer = first + (rank - first + 1) % count
        way = f"{'to' if sends else 'from'} rank {peer}"
        assert f"rank {rank} waits for {word} of float32 (3,) {way} at " in str(raised.value)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("seed", [None, 1])
def test_differing_ranks_all_raise(seed):
    for reported in simgpu.ranks(2, rank_cases.every_mistake, schedule=seed):
        for name, text in reported.items():
            assert text.startswith("CollectiveMismatchError"), (name, text)
            assert "rank 0" in text, text
            assert "rank 1" in text, text
            assert text.count("rank_cases.py:") == 2, text


@pytest.mark.without("--races", reason="races on purpose")
@few
@given(seed=schedules)
def test_async_output_is_nan_until_wait(seed):
    def read(rank):
        x = torch.full((2,), rank + 1.0, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        early = x.tolist()
        work.wait()
        return early, x.tolist()

    for early, late in simgpu.ranks(3, read, schedule=seed):
        assert all(number != number for number in early)
        assert late == [6.0, 6.0]


@few
@given(
    count=strategies.world_sizes(1, 3),
    between=st.lists(
        st.tuples(st.sampled_from(["all_reduce", "barrier", "reduce"]), st.booleans()), max_size=3
    ),
    last=st.sampled_from(["all_reduce", "barrier", "reduce"]),
    seed=schedules,
)
def test_wait_for_the_last_call_completes_those_before(count, between, last, seed):
    """Also where those between have run, and have written nothing."""

    def begin(name):
        if name == "barrier":
            return dist.barrier(async_op=True, device_ids=[torch.cuda.current_device()])
        x = torch.ones(2, device="cuda")
        root = {"dst": 0} if name == "reduce" else {}
        return getattr(dist, name)(x, async_op=True, **root)

    def wait_once(rank):
        first = torch.ones(2, device="cuda")
        dist.all_reduce(first, async_op=True)
        for name, asks in between:
            work = begin(name)
            while asks and not work.is_completed():
                pass
        begin(last).wait()
        return first.tolist()

    assert simgpu.ranks(count, wait_once, schedule=seed) == [[float(count)] * 2] * count


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (dist.destroy_process_group, "destroyed"),
        (vars(dist.distributed_c10d)["_abort_process_group"], "aborted"),
    ],
)
@few
@given(count=strategies.world_sizes(1, 3), used=st.booleans())
def test_call_of_an_ended_group_raises(end, how, count, used):
    """The others go on, and so does the world."""

    def use(rank):
        x = torch.ones(2, device="cuda")
        ended, other = (dist.new_group(range(count)) for _ in range(2))
        if used:
            dist.all_reduce(x, group=ended)
        end(ended)
        with pytest.raises((SimGPUError, ValueError)) as raised:
            dist.all_reduce(x, group=ended)
        # PyTorch's logger fails over it, as it does not know the group any more.
        error = raised.value.__context__ or raised.value
        assert re.search(rf"all_reduce .*test_ranks.py:\d+.*was {how}", str(error)), error
        dist.all_reduce(x, group=other)
        dist.all_reduce(x)
        return x.tolist()

    total = count ** (2 + used)
    assert simgpu.ranks(count, use) == [[total, total]] * count


@few
@given(count=strategies.world_sizes(), first=st.booleans(), seed=schedules)
def test_second_default_group_needs_the_end_of_the_first(count, first, seed):
    def main(rank):
        if first:
            dist.destroy_process_group()
        dist.init_process_group("nccl")
        x = torch.ones(1, device="cuda")
        dist.all_reduce(x)
        return x.item()

    if first:
        assert simgpu.ranks(count, main, schedule=seed) == [count] * count
        return
    with pytest.raises(ValueError, match="default process group twice") as raised:
        simgpu.ranks(count, main, schedule=seed)
    if hasattr(raised.value, "__notes__"):
        assert any("destroy_process_group() before it" in note for note in raised.value.__notes__)


def of_no_rank():
    """Never called."""


def of_rank_and_size(rank, size):
    """Never called."""


def that_fails_inside(rank):
    return len(rank)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
@few
@given(
    count=strategies.world_sizes(1, 4),
    function=st.sampled_from([of_no_rank, of_rank_and_size, that_fails_inside]),
    seed=schedules,
)
def test_function_without_a_rank_argument_is_refused(count, function, seed):
    """One that takes it, and fails, is not."""
    with pytest.raises(TypeError) as raised:
        simgpu.ranks(count, function, schedule=seed)
    reported = [note for note in raised.value.__notes__ if "write def fn(rank)" in note]
    assert len(reported) == (function is not that_fails_inside)


def test_too_few_devices_and_worlds_within_worlds_are_refused():
    with pytest.raises(ValueError, match="9 ranks need 9 devices"):
        simgpu.ranks(9, lambda rank: None)
    for count in (0, 65, "2", True):
        with pytest.raises(ValueError, match=f"from 1 to 64, got {count!r}"):
            simgpu.ranks(count, lambda rank: None)
    with pytest.raises(RuntimeError, match="rank 0 of a world cannot start another"):
        simgpu.ranks(1, lambda rank: simgpu.ranks(1, lambda rank: None))


@pytest.mark.parametrize("name", ["broadcast", "gather", "reduce", "scatter"])
@few
@given(roots=st.lists(st.integers(0, 3 - 1), min_size=3, max_size=3), seed=schedules)
def test_differing_roots_raise(name, roots, seed):
    def call(rank):
        parts = collectives.brought(3, (2,), torch.float32, 0)
        collectives.begin(name, parts, roots[rank])

    if len(set(roots)) == 1:
        simgpu.ranks(3, call, schedule=seed)
        return
    with pytest.raises(CollectiveMismatchError, match=rf"rank.*: {name} of float32|{name} float32"):
        simgpu.ranks(3, call, schedule=seed)


@few
@given(count=strategies.world_sizes(3, 5), data=st.data(), seed=schedules)
def test_peer_of_a_send_is_reported_by_global_rank(count, data, seed):
    """In a part of a group, too, where it has another number: as it has in the least example."""
    members = sorted(data.draw(st.permutations(range(count)))[-data.draw(st.integers(2, count)) :])
    source, target = data.draw(st.permutations(members))[:2]

    def exchange(rank):
        group = dist.new_group(members)
        x = torch.ones(2, device="cuda")
        if rank == source:
            dist.send(x, target, group=group)
        elif rank == target:
            dist.recv(x, source, group=group)

    with simgpu.trace() as trace:
        simgpu.ranks(count, exchange, schedule=seed)
    seen = [each.collective for each in trace if each.collective is not None]
    between = {(each.rank, each.peer, each.sends) for each in seen if each.peer is not None}
    assert between == {(source, target, True), (target, source, False)}


def test_world_logs_no_errors_of_its_ranks():
    logger = c10d_logger._c10d_logger
    with (
        mock.patch.object(logger, "handle") as handle,
        pytest.raises(CollectiveMismatchError),
    ):
        simgpu.ranks(3, lambda rank: dist.all_reduce(torch.ones(rank + 1, device="cuda")))
    assert not handle.called
    assert not logger.disabled
