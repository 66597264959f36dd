"""Ranks that are processes: the collectives, and the errors of ranks that differ."""

import weakref
from datetime import timedelta
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu._core import hooks
from simgpu._cuda import process_groups
from simgpu._distributed import fake_transport
from simgpu._distributed import groups as distributed_groups
from tests.support import rank_cases, rank_processes

pytestmark = pytest.mark.filterwarnings("ignore:barrier")


@pytest.mark.parametrize(("count", "dtype"), [(3, torch.float32), (2, torch.int32)])
def test_collectives_match_their_definition_in_processes(count, dtype):
    rank_processes.run(count, rank_cases.every_collective, (3, 2), dtype, 1)


@pytest.mark.parametrize("backed", [True, False])
def test_sparse_tensors_are_summed_by_gloo(backed):
    rank_processes.run(2, rank_cases.sparse_sum, 4, 2, 1, backed, backend="gloo")


def test_differing_ranks_all_raise():
    for reported in rank_processes.run(2, rank_cases.every_mistake):
        for name, text in reported.items():
            assert text.startswith("CollectiveMismatchError"), (name, text)
            assert "rank 0" in text, text
            assert "rank 1" in text, text
            assert text.count("rank_cases.py:") == 2, text


@pytest.mark.parametrize(("count", "leaver", "calls"), [(2, 1, 0), (3, 0, 1), (3, 2, 2)])
def test_ended_rank_is_named_at_once(count, leaver, calls):
    """Long before the timeout of the group, which is a minute here; also by who follows it."""
    for rank, text in enumerate(rank_processes.run(count, rank_cases.left, leaver, calls)):
        if rank == leaver:
            continue
        assert text.startswith(f"RankLostError: call {calls + 1} of group '0', broadcast"), text
        assert f"rank {leaver} has ended or left the group" in text
        last = f"the last call that it came to was all_reduce float32 ({calls},) SUM at"
        assert (last in text) == (calls > 0)


def test_missing_rank_is_reported_after_the_timeout():
    text, _ = rank_processes.run(2, rank_cases.late, timeout=0.5)
    assert text.startswith("CollectiveTimeoutError: call 1 of group '0'"), text
    assert "all_reduce float32 (3,) SUM at " in text
    assert "rank_cases.py:" in text


@pytest.mark.parametrize(
    ("first", "second"), [([[0], [1, 2]], [[0]]), ([[0, 2], [1]], [[0], [1]]), ([[1, 2]], [[1]])]
)
@pytest.mark.parametrize("level", ["OFF", "DETAIL"])
def test_a_group_is_split_into_groups_of_its_kind(first, second, level):
    if level == "DETAIL" and torch.__version__ < (2, 12):
        return  # PyTorch's wrapper has no split there
    found = rank_processes.run(
        3, rank_cases.parts_of_a_group, first, second, bound=True, debug=level
    )
    for text in found:
        assert text == "Cannot use ReduceOp.BOR with NCCL"


@given(
    ranks=st.lists(st.integers(0, 9), max_size=3, unique=True),
    size=st.integers(1, 2),
)
def test_parts_of_a_group_change_nothing_of_the_whole(ranks, size):
    """C++ writes the ranks of a part, and its timeout, where it finds options."""
    backends = [dist.ProcessGroupGloo(dist.HashStore(), 0, 1) for _ in range(size)]
    for backend in backends:
        backend.options.global_ranks_in_group = ranks
    wanted = ranks or [0]
    for _ in range(2):
        options = distributed_groups.options_of_parts(backends)
        assert options.global_ranks_in_group == wanted
        options.global_ranks_in_group = [7]
        options._timeout = timedelta(seconds=7)
        assert distributed_groups.copied(options)._timeout == options._timeout
        for backend in backends:
            assert backend.options.global_ranks_in_group == wanted
            assert backend.options._timeout != options._timeout


@pytest.mark.parametrize(
    ("shared", "machines", "restart", "apart"),
    [
        *(("True", "1", "1", True), ("True", "1", "0", False)),
        *(("False", "1", "1", False), ("True", "2", "1", False)),
    ],
)
def test_restarted_ranks_have_keys_of_their_own(monkeypatch, shared, machines, restart, apart):
    """Each attempt of torchrun on one machine; all others share theirs."""
    server, by_attempt = dist.HashStore(), []
    server.set("old", "")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shared)
    monkeypatch.setenv("GROUP_WORLD_SIZE", machines)
    for count in (restart, restart, str(int(restart) + 1)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        by_attempt.append(process_groups._with_restart_prefix(lambda: server))
    first, second, later = by_attempt
    assert second.check(["old"]) is not apart
    first.set("new", "")
    assert second.check(["new"])
    assert later.check(["new"]) is ((shared, machines) != ("True", "1"))


def test_cuda_is_initialized_by_the_first_use():
    """As init_device_mesh asks CUDA, which is initialized when a process has used a device."""

    def initialized(use):
        with simgpu.as_cuda(2):
            assert torch.cuda.device_count() == 2
            torch.manual_seed(0)
            before = torch.cuda.is_initialized()
            use()
            return before, torch.cuda.is_initialized()

    assert initialized(lambda: None) == (False, False)
    assert initialized(lambda: torch.cuda.set_device(1)) == (False, True)
    assert initialized(lambda: torch.ones(1, device="cuda:1")) == (False, True)


def test_dropped_group_does_not_wait(monkeypatch):
    """The garbage collector finds it, in a thread that may be adding an instrument just then."""
    # Groups that earlier tests left alive are none of these.
    monkeypatch.setattr(distributed_groups, "_communicators", weakref.WeakKeyDictionary())
    monkeypatch.setattr(distributed_groups, "_synchronization", None)

    class Held:
        def acquire(self, blocking=True):
            assert not blocking, "it would wait for itself"
            return False

        __enter__ = acquire

    def watching():
        return distributed_groups._synchronization is not None

    transport = fake_transport.FakeTransport(None)
    distributed_groups._watch()
    with mock.patch.object(hooks, "_lock", Held()):
        distributed_groups._close(transport.closing())
        assert watching()
    distributed_groups._close(transport.closing())
    assert not watching()


@given(dying=st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_new_group_is_watched_while_others_are_collected(dying):
    """The garbage collector may find the last of all others just then."""
    groups, which = [], iter(dying)

    class Group:
        """A process group."""

    class Made:
        """A communicator, while which is made the garbage collector runs."""

        def __init__(self, group):
            del groups[: next(which)]
            self.transport = fake_transport.FakeTransport(None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed_groups, "_communicators", weakref.WeakKeyDictionary())
        patch.setattr(distributed_groups, "_synchronization", None)
        patch.setattr(distributed_groups, "Communicator", Made)
        for _ in dying:
            group = Group()
            distributed_groups.find(group)
            groups.append(group)
            assert distributed_groups._synchronization is not None
        groups.clear()
        del group
        assert distributed_groups._synchronization is None


def test_call_of_a_group_aborted_by_its_backend_raises():
    for text in rank_processes.run(2, rank_cases.aborted_by_backend):
        assert "was aborted" in text
