"""How ranks that are threads come to an end: by Ctrl-C, by `sys.exit`, in the middle of a call."""

import _thread
import sys
from traceback import walk_tb

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu import strategies
from simgpu._distributed import agreement
from simgpu._explore.schedules import scheduler
from simgpu.errors import CollectiveMismatchError, DeadlockError, RankLostError
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")


def compute_for_ever(rank):
    x = torch.ones(2, device="cuda")
    while True:
        x = x * 1


def wait_for_ever(rank):
    while True:
        dist.barrier(device_ids=[rank])


@pytest.mark.parametrize(
    ("go_on", "seed"), [(compute_for_ever, 1), (wait_for_ever, None), (wait_for_ever, 1)]
)
def test_ctrl_c_ends_ranks_where_they_may_switch(interruptible, go_on, seed):
    def go(rank):
        if rank == 0:
            _thread.interrupt_main()
        go_on(rank)

    with pytest.raises(KeyboardInterrupt):
        simgpu.ranks(2, go, schedule=seed)
    assert simgpu.ranks(2, lambda rank: rank) == [0, 1]


@pytest.mark.parametrize("count", [2, 4])
def test_ctrl_c_ends_a_busy_rank_and_starts_no_other(monkeypatch, interruptible, count):
    monkeypatch.setattr(scheduler, "PATIENCE", 0.0)
    begun = []

    def go(rank):
        begun.append(rank)
        _thread.interrupt_main()
        while True:  # no tensors: in what is called when one dies, the error would be ignored
            rank += 1

    with pytest.raises(KeyboardInterrupt):
        simgpu.ranks(count, go)
    assert begun == [0]
    assert simgpu.ranks(count, lambda rank: rank) == list(range(count))


def test_waiting_ranks_raise_after_ctrl_c(monkeypatch, interruptible):
    monkeypatch.setattr(scheduler, "PATIENCE", 0.0)
    heard = []

    def go(rank):
        dist.barrier(device_ids=[rank])
        if rank == 0:  # the other one waits by now
            _thread.interrupt_main()
            while True:
                rank += 1
        try:
            dist.barrier(device_ids=[rank])
        except RankLostError as error:
            heard.append(str(error))
            raise

    with pytest.raises(KeyboardInterrupt):
        simgpu.ranks(2, go)
    assert heard == ["the ranks were interrupted by KeyboardInterrupt"]


def test_slow_rank_can_finish(monkeypatch):
    monkeypatch.setattr(scheduler, "PATIENCE", 0.0)
    monkeypatch.setattr(scheduler, "_LOOK_EVERY", 1e-6)
    assert simgpu.ranks(2, lambda rank: sum(range(3 * 10**6))) == [sum(range(3 * 10**6))] * 2


@few
@given(count=strategies.world_sizes(2, 4), data=st.data(), seed=schedules)
def test_incomplete_call_raises_without_a_wait(count, data, seed):
    members = sorted(data.draw(st.sets(st.integers(0, count - 1), min_size=2), "members"))
    callers = data.draw(st.sets(st.sampled_from(members), min_size=1), "callers")

    def go(rank):
        x = torch.ones(3, device="cuda")
        dist.all_reduce(x)
        group = dist.new_group(members)
        if rank in callers:
            dist.all_reduce(x, group=group, async_op=True)

    if len(callers) == len(members):
        simgpu.ranks(count, go, schedule=seed)
        return
    missing = sorted({*members} - callers)
    with pytest.raises(CollectiveMismatchError) as caught:
        simgpu.ranks(count, go, schedule=seed)
    text = str(caught.value)
    have = "has" if len(missing) == 1 else "have"
    who, others = agreement.named_ranks(sorted(callers)), agreement.named_ranks(missing)
    assert f"was called by {who} alone: {others} {have} ended" in text
    assert f"all_reduce float32 (3,) SUM at {__file__}:" in text


@few
@given(sends=st.integers(0, 3), receives=st.integers(0, 3), seed=schedules)
@example(sends=2, receives=1, seed=None)
@example(sends=0, receives=2, seed=0)
def test_unmatched_message_is_reported_without_a_wait(sends, receives, seed):
    def go(rank):
        x = torch.ones(3, device="cuda")
        if rank:
            return len([dist.irecv(x, 0) for _ in range(receives)])
        return len([dist.isend(x, 1) for _ in range(sends)])

    if sends == receives:
        assert simgpu.ranks(2, go, schedule=seed) == [sends, receives]
        return
    with pytest.raises(CollectiveMismatchError) as caught:
        simgpu.ranks(2, go, schedule=seed)
    text, number = str(caught.value), min(sends, receives) + 1
    if sends > receives:
        call, ending = "send of float32 (3,) to rank 1", "rank 0 alone: rank 1 has ended"
    else:
        call, ending = "recv of float32 (3,) from rank 0", "rank 1 alone: rank 0 has ended"
    missing = "recv" if sends > receives else "send"
    assert f"{call} at {__file__}:" in text
    assert f"(call {number} of group" in text
    assert f"by {ending} without its {missing}, and no rank has waited for it" in text


CALLS = {
    "all_reduce": lambda x, group: dist.all_reduce(x, group=group, async_op=True),
    "isend": lambda x, group: dist.isend(x, 0, group=group),
    "irecv": lambda x, group: dist.irecv(x, 0, group=group),
}


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("name", CALLS)
def test_call_of_an_aborted_group_does_not_wait(backend, name):
    def go(rank):
        group = dist.new_group([0, 1])
        if rank == 1:
            CALLS[name](torch.ones(1, device="cuda"), group)
            dist.distributed_c10d._abort_process_group(group)
        return rank

    assert simgpu.ranks(2, go, backend=backend) == [0, 1]


@few
@given(count=strategies.world_sizes(2, 4), data=st.data(), seed=schedules)
def test_error_note_names_waits_of_other_ranks(count, data, seed):
    """If anything has; and where nobody can go on, that is the error itself."""
    failing = data.draw(st.none() | st.integers(0, count - 1), "who raises")
    waiting = failing is None or data.draw(st.booleans(), "whether others wait")

    def go(rank):
        if rank == failing:
            raise KeyError("why")
        if waiting and rank:
            dist.recv(torch.ones(1, device="cuda"), rank)

    error = DeadlockError if failing is None else KeyError
    if waiting and failing is not None and not {*range(1, count)} - {failing}:
        waiting = False  # there is nobody else to wait
    with pytest.raises(error) as caught:
        simgpu.ranks(count, go, schedule=seed)
    notes = getattr(caught.value, "__notes__", None)
    if notes is not None:  # from Python 3.11 on
        assert notes[0].startswith("raised by rank ")
        stopped = [note for note in notes if note.startswith("no rank can go on: ")]
        assert len(stopped) == (waiting and failing is not None)
        assert "None" not in notes


@few
@given(count=strategies.world_sizes(2, 4), seed=schedules)
def test_deadlock_traceback_belongs_to_the_named_rank(count, seed):
    """All ranks wait, and each of them raises."""

    def wait(rank):
        dist.recv(torch.ones(1, device="cuda"), (rank + 1) % count)

    with pytest.raises(DeadlockError) as caught:
        simgpu.ranks(count, wait, schedule=seed)
    frames = [frame for frame, _ in walk_tb(caught.tb) if frame.f_code is wait.__code__]
    assert len(frames) == 1
    for note in getattr(caught.value, "__notes__", ())[:1]:  # from Python 3.11 on
        assert note == f"raised by rank {frames[0].f_locals['rank']} of {count}"


async def coroutine(rank):
    """Never run."""


async def both(rank):
    yield rank


class Asynchronous:
    async def __call__(self, rank):
        """Never run."""


@pytest.mark.parametrize("function", [coroutine, lambda rank: (yield), both, Asynchronous()])
def test_coroutine_functions_are_refused(function):
    with pytest.raises(TypeError, match="which returns a coroutine"):
        simgpu.ranks(2, function)


@pytest.mark.parametrize("code", [0, None, 3, "words", "", 0.0])
def test_sys_exit_ends_a_rank_like_a_process(code):
    """With 0 or nothing it has just ended; with anything else, so does who started it."""

    def go(rank):
        dist.barrier(device_ids=[rank])
        if rank:
            sys.exit(code)
        return rank

    if code is not None and repr(code) != "0":
        with pytest.raises(SystemExit) as caught:
            simgpu.ranks(2, go)
        assert caught.value.code == code
    else:
        assert simgpu.ranks(2, go) == [0, None]
