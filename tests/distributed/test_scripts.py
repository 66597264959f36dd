"""A script that nobody edited, started by torchrun, which runs with simulated devices."""

import json
import re

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
    run = ["-m", "simgpu", "run", "--devices", "1", *launcher]
    watched = ["-m", "simgpu", "run", "--summary", "--trace", "timeline.json", "train.py"]
    done = python(*run, *watched, cwd=tmp_path, PYTHONWARNINGS="ignore")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["sum [1.0, 1.0] of 1 nccl cuda:0"]
    assert re.search(r"^allreduce +1 +8 bytes +0 of 1 rank$", done.stderr, re.MULTILINE)
    events = json.loads((tmp_path / "timeline.json").read_text(encoding="utf-8"))["traceEvents"]
    [args] = [event["args"] for event in events if event.get("cat") == "collective"]
    assert args.pop("place").startswith("train.py:")
    told = {"group": "0", "number": 1, "ranks": [0], "bytes": 8, "algorithm": "all_gather"}
    assert args == {**told, "rank": 0, "index": 0, "peer": None, "sends": False}
