"""A script that nobody edited, started by torchrun in a process with simulated devices."""

SCRIPT = """
import os
import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
x = torch.full((2,), dist.get_rank() + 1.0, device="cuda")
dist.all_reduce(x)
print("sum", x.tolist(), "of", dist.get_world_size(), dist.get_backend(), x.device)
dist.destroy_process_group()
"""


def test_torchrun_starts_as_many_ranks_as_there_are_devices(python, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "gpu"]
    run = ["-m", "simgpu", "run", "--devices", "1", *launcher, "train.py"]
    done = python(*run, cwd=tmp_path, PYTHONWARNINGS="ignore")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["sum [1.0, 1.0] of 1 nccl cuda:0"]
