"""Programs that nobody edited, whose ranks torchrun or torch.multiprocessing.spawn starts.

One of them loses a rank, is started again, and has to end with the losses of the other.
"""

import json
import re

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
    reported = {"group": "0", "ranks": [0, 1], "bytes": 12, "algorithm": "all_gather"}
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
