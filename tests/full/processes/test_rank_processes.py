"""Ranks that are processes: the collectives, and the errors of ranks that differ."""

import json
import re
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


# The two ranks of `package.train` learn, and go on where their checkpoint is.
TRAIN = """
import os
import sys

import torch
import torch.distributed as dist


def train(rank, folder, dies_at=None):
    torch.cuda.set_device(rank)
    weight, first = torch.tensor([1.0, -2.0, 3.0], device="cuda"), 0
    saved = f"{folder}/checkpoint.pt"
    if os.path.exists(saved):
        first, weight = torch.load(saved, map_location="cuda")
    for step in range(first, 4):
        if step == dies_at:
            os._exit(3)
        x = torch.full((2, 3), step - rank + 0.5, device="cuda")
        loss = (x @ weight.requires_grad_() - 1).square().mean()
        [gradient] = torch.autograd.grad(loss, weight)
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
        weight = (weight - 0.1 * gradient).detach()
        print(f"step {step} of rank {rank}: {loss.item()!r}", flush=True)
        if rank == 0:
            torch.save((step + 1, weight), f"{saved}.new")
            os.replace(f"{saved}.new", saved)


if __name__ == "__main__":
    rank, restarts = (int(os.environ[name]) for name in ("RANK", "TORCHELASTIC_RESTART_COUNT"))
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    train(rank, *sys.argv[1:], dies_at=2 if rank == 1 and restarts == 0 else None)
    dist.destroy_process_group()
"""

SPAWNS = """
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from .train import train


def run(rank, count, folder):
    store = f"file://{os.path.abspath(folder)}/store"  # of a relative one, the first part is lost
    dist.init_process_group("nccl", store, rank=rank, world_size=count)
    train(rank, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    count = torch.cuda.device_count()
    mp.spawn(run, (count, *sys.argv[1:]), nprocs=count)
"""


def losses(text):
    """Those of each step and rank, once; a step that was done twice has to have the same."""
    said = set(re.findall(r"step (\d) of rank (\d): (\S+?)(?=step|\s|$)", text))
    found = {(int(step), int(rank)): float(loss) for step, rank, loss in said}
    assert len(found) == len(said), said
    return found


def test_restarted_ranks_end_like_undisturbed_ones(python, tmp_path):
    package = tmp_path / "package"
    for name, text in {"__init__": "", "train": TRAIN, "spawns": SPAWNS}.items():
        package.mkdir(exist_ok=True)
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    for folder in ("undisturbed", "restarted"):
        (tmp_path / folder).mkdir()
    run = ["-m", "simgpu", "run", "--devices", "2", "-m"]
    quiet = {"cwd": tmp_path, "PYTHONWARNINGS": "ignore"}

    spawned = python(*run, "package.spawns", "undisturbed", **quiet)
    assert spawned.returncode == 0, spawned.stderr
    wanted = losses(spawned.stdout)
    assert set(wanted) == {(step, rank) for step in range(4) for rank in range(2)}

    # As many ranks as there are devices, each of them watched, and one restart of both.
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "gpu"]
    launcher += ["--max-restarts", "1", "-m"]
    watched = ["simgpu", "run", "--summary", "--trace", "timeline.json", "-m", "package.train"]
    elastic = python(*run, *launcher, *watched, "restarted", **quiet)
    assert elastic.returncode == 0, elastic.stderr
    assert re.search(r"exitcode: 3\b", elastic.stderr), elastic.stderr
    assert losses(elastic.stdout) == wanted
    done_again = len(re.findall(r"step [23] of rank 1:", elastic.stdout))
    assert done_again == 2, elastic.stdout

    table = re.search(
        r"^allreduce +(\d) +(\d+) bytes +0 \(2 ranks\)$", elastic.stderr, re.MULTILINE
    )
    assert table is not None, elastic.stderr
    assert int(table[2]) == 12 * int(table[1])
    events = json.loads((tmp_path / "timeline.json").read_text(encoding="utf-8"))["traceEvents"]
    calls = [event["args"] for event in events if event.get("cat") == "collective"]
    assert all("train.py:" in args.pop("place") for args in calls)
    numbers = range(1, 1 + len(calls) // 2)  # of the second attempt only
    reported = {"group": "0", "ranks": [0, 1], "bytes": 12}
    reported |= {"peer": None, "tag": 0, "sends": False}
    assert len(numbers) in (2, 3)
    assert calls == [
        {**reported, "rank": rank, "index": rank, "number": number}
        for rank in range(2)
        for number in numbers
    ]


OTHER_CALLS = """
import os

import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["RANK"]))
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1 + dist.get_rank(), device="cuda"))
"""


def test_calls_that_differ_are_reported_once(python, tmp_path):
    """By the lines of the program, and the summary of torchrun names the program."""
    (tmp_path / "train.py").write_text(OTHER_CALLS, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = python(*launcher, "-m", "simgpu", "run", "--devices", "2", "train.py", cwd=tmp_path)
    assert ended.returncode != 0
    of_ranks = [line for line in ended.stderr.splitlines() if line.startswith("[rank")]
    assert of_ranks, ended.stderr
    assert sum("]: Traceback" in line for line in of_ranks) <= 1, ended.stderr
    assert not any("simgpu/_" in line or "runpy" in line for line in of_ranks), ended.stderr
    assert "train.py FAILED" in ended.stderr, ended.stderr


IN_THREADS = """
import torch
import simgpu
import torch.distributed.tensor

def step(rank):
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1).cuda(), [rank])
    net(torch.ones(3, 2, device="cuda")).sum().backward()

simgpu.ranks(2, step)
"""


def test_ranks_in_threads_print_nothing(python):
    """Not even that Triton is missing, which no simulated device needs."""
    done = python("-c", IN_THREADS, PYTHONWARNINGS="ignore")
    assert (done.returncode, done.stderr) == (0, "")


ONE_GPU_EACH = """
import os

rank = int(os.environ["LOCAL_RANK"])
os.environ["CUDA_VISIBLE_DEVICES"] = str(rank)
import torch
import torch.distributed as dist

assert torch.cuda.device_count() == 1
dist.init_process_group("nccl")
x = torch.full((3,), rank + 1.0, device="cuda:0")
dist.all_reduce(x)
place = torch.cuda.get_device_properties(0).pci_bus_id
print(f"rank {rank} has {x.tolist()} on {x.device} at {place}", flush=True)
dist.destroy_process_group()
"""


def test_ranks_with_one_visible_gpu_use_index_0(python, tmp_path):
    """Each sets CUDA_VISIBLE_DEVICES to its local rank, as launchers do."""
    script = tmp_path / "script.py"
    script.write_text(ONE_GPU_EACH)
    run = ("-m", "simgpu", "run", "--devices", "2", "-m", "torch.distributed.run")
    done = python(*run, "--standalone", "--nproc-per-node", "2", script, PYTHONWARNINGS="default")
    assert done.returncode == 0, done.stderr
    said = set(re.findall(r"rank \d has \S+ \S+ \S+ on cuda:\d at \d", done.stdout))
    assert said == {f"rank {rank} has [3.0, 3.0, 3.0] on cuda:0 at {rank + 1}" for rank in (0, 1)}
