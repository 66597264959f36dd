"""`simgpu run` takes its options together, in a process of its own.

What each of them does in each case is in the other files of this folder.
"""

import json

PROGRAM = """
import sys, torch
from torch import nn

model = nn.DataParallel(nn.Linear(3, 2).to("simgpu:0"))
print(type(model).__module__, sys.argv[1:])
print(torch.simgpu.get_rng_state(0).numel() == torch.get_rng_state().numel())
for k in range(2):
    device = torch.simgpu.get_device_properties(k)
    print(device.name, device.total_memory)
x = torch.ones(3, device="simgpu:1") + 1
with torch.simgpu.stream(torch.simgpu.Stream(1)):
    print((x * 2).tolist())  # has not waited
"""
DEVICES = ("--devices", 2, "--memory", "3GiB,4GiB", "--model", "A100,H100")
NAMES = ("--rng", "host", "--as", "simgpu", "--force", "--replace-data-parallel")


def test_run_takes_its_options_together(python, tmp_path):
    watch = ("--async", "--races", "--strict", "--summary", "--trace", tmp_path / "trace.json")
    done = python("-m", "simgpu", "run", *DEVICES, *NAMES, *watch, "-c", PROGRAM, "--flag")
    assert done.returncode == 1, done.stderr  # a race
    assert done.stdout.splitlines() == [
        "dataparallel.data_parallel ['--flag']",
        "True",
        f"NVIDIA A100-SXM4-40GB {3 * 2**30}",
        f"NVIDIA H100 80GB HBM3 {4 * 2**30}",
        "[nan, nan, nan]",
    ]
    assert "simgpu run --races: 1 race" in done.stderr
    assert [line[:8] for line in done.stderr.splitlines()[-2:]] == ["simgpu:0", "simgpu:1"]
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
