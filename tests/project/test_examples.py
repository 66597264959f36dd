"""The examples, run as a reader runs them: what they print is what the hardware printed."""

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest

import simgpu
from tests.support.chunk_rule import chunk_sizes

EXAMPLES = Path(__file__).parents[2] / "examples"
INSIDE = re.compile(r"\tIn Model: input size torch\.Size\(\[(\d+), 5\]\) output size (.*)")
OUTSIDE = re.compile(r"Outside: input size torch\.Size\(\[(\d+), 5\]\) output_size (.*)")
LOSS = re.compile(r"loss (\d+\.\d+)")


def check_tutorial(lines, count):
    """Every line is whole, and every batch has the sizes that `count` GPUs see."""
    if count > 1:
        assert lines.pop(0) == f"Let's use {count} GPUs!"
    start = next(k for k, line in enumerate(lines) if line.startswith("Training"))
    batches, inside = [], []
    for line in lines[:start]:
        seen, whole = INSIDE.fullmatch(line), OUTSIDE.fullmatch(line)
        assert seen or whole, line
        rows, size = (seen or whole).groups()
        assert size == f"torch.Size([{rows}, 2])"
        if seen:
            inside.append(int(rows))
        else:
            batches.append((int(rows), Counter(inside)))
            inside = []
    assert batches == [(rows, Counter(chunk_sizes(rows, count))) for rows in (30, 30, 30, 10)]
    losses = [float(LOSS.search(line).group(1)) for line in lines[start + 1 :]]
    assert len(losses) == 5
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_tutorial_in_this_process(count, capfd):
    with simgpu.devices(count):
        runpy.run_path(str(EXAMPLES / "data_parallel_tutorial.py"), run_name="__main__")
    check_tutorial(capfd.readouterr().out.splitlines(), count)


def test_tutorial_from_the_command_line(python):
    done = python("-m", "simgpu", "run", "--devices", 4, EXAMPLES / "data_parallel_tutorial.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    check_tutorial(done.stdout.splitlines(), 4)


def check_multi_gpu(lines, count):
    assert lines[0] == f"{count} GPUs"
    assert len(lines) == 5
    assert "10 -> 20" in lines[2]
    assert "embedding on cpu" in lines[4]
    for line in lines[1:]:
        before, after = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", line).groups())
        assert after < before


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_multi_gpu_in_this_process(count, capfd):
    with simgpu.devices(count):
        runpy.run_path(str(EXAMPLES / "multi_gpu.py"), run_name="__main__")
    lines = capfd.readouterr().out.splitlines()
    check_multi_gpu(lines, count)
    assert lines[4].startswith("embedding on cpu, layer on simgpu:0")


@pytest.mark.full
@pytest.mark.parametrize("name", ["data_parallel_tutorial.py", "multi_gpu.py"])
def test_on_a_machine_without_gpus(python, name):
    """Run as they are, without simulated devices and with real ones hidden: on the CPU."""
    done = python(EXAMPLES / name, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if name == "multi_gpu.py":
        check_multi_gpu(lines, 0)
    else:
        check_tutorial(lines, 1)
