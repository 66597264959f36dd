"""Programs written for CUDA, run as they are: numbers, sizes, devices and bytes.

Where a program is run to compare numbers, its default dtype is float64, which a caller may set
without touching it, so that sums in another order differ by next to nothing.
"""

import contextlib
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

import simgpu

HERE = Path(__file__).parent


@pytest.fixture
def run(monkeypatch):
    """Run a program on so many GPUs, which stay until the next run or the test's end.

    Returns its globals, and what ran on the devices as "trace".
    """
    world = contextlib.ExitStack()

    def run(name, count, *arguments, dtype=torch.float32):
        path = HERE / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        world.close()
        world.enter_context(simgpu.as_cuda(count))
        torch.set_default_dtype(dtype)
        try:
            with simgpu.trace() as trace:
                return {**runpy.run_path(str(path), run_name="__main__"), "trace": trace}
        finally:
            torch.set_default_dtype(torch.float32)

    with world:
        yield run


def gpus(count):
    return [torch.device("cuda", index) for index in range(count)]


def test_classifier_resumes_from_a_checkpoint(run, tmp_path):
    count = 3
    file = tmp_path / "checkpoint.pt"
    whole = run("classifier", count, "--checkpoint", file)
    resumed = run("classifier", count, "--checkpoint", file, "--resume")
    assert len(whole["losses"]) == 2 * len(resumed["losses"]) == 12
    assert resumed["losses"] == whole["losses"][6:]
    assert resumed["right"] == whole["right"] > 9  # one in four by chance
    assert whole["losses"][-1] < whole["losses"][0]
    assert whole["rates"] == [0.05, 0.05, 0.025, 0.025]
    assert whole["rates"][2:] == resumed["rates"]
    assert whole["scaler"].get_scale() == resumed["scaler"].get_scale() == 2.0**14
    assert whole["dtypes"] == {torch.float16}
    assert all(whole["pinned"])
    assert {p.get_device() for p in whole["model"].parameters()} == {0}
    used = {record.device.index for record in whole["trace"].kernels}
    assert used == set(range(count))


def test_a_classifier_with_workers_from_the_command_line(python, run):
    """Workers are forked, and touch no device; what they load makes no difference."""
    path = HERE / "classifier.py"
    # Python 3.12 remarks on every fork of a process with threads, such as PyTorch's own.
    silenced = "error,ignore:This process:DeprecationWarning"
    options = ("--epochs", 2, "--workers", 2)
    done = python("-m", "simgpu", "run", "--devices", 2, path, *options, PYTHONWARNINGS=silenced)
    assert done.returncode == 0, done.stderr
    here = run("classifier", 2, "--epochs", 2)
    assert f"6 steps, last loss {here['losses'][-1]:.6f}" in done.stdout
    assert "2 GPUs" in done.stdout


def test_a_language_model_learns_as_on_one_gpu(run):
    single = run("language_model", 1, dtype=torch.float64)
    together = run("language_model", 4, dtype=torch.float64)
    torch.testing.assert_close(torch.tensor(together["losses"]), torch.tensor(single["losses"]))
    assert single["losses"][-1] < single["losses"][0]
    assert {seen[1:] for seen in single["seen"]} == {((5, 8), (2, 8, 12))}
    assert Counter(together["seen"]) == {(device, (5, 2), (2, 2, 12)): 14 for device in gpus(4)}
    assert together["hidden"][0].shape == (2, 8, 12)
    assert together["net"].decoder.weight is together["net"].encoder.weight


def test_a_model_on_two_gpus_and_as_a_pipeline(run):
    single = run("two_devices", 1, dtype=torch.float64)
    apart = run("two_devices", 2, dtype=torch.float64)
    assert apart["losses"] == single["losses"]
    assert apart["losses"][-1] < apart["losses"][0]
    torch.testing.assert_close(torch.tensor(apart["pipelined"]), torch.tensor(apart["losses"]))
    trace = apart["trace"]
    # Twice 5 steps: 12 rows of 16 numbers go over, and as many gradients come back.
    crossing = 2 * 5 * 12 * 16 * 8
    assert trace.bytes_copied("simgpu:0", "simgpu:1") == crossing
    assert trace.bytes_copied("simgpu:1", "simgpu:0") == crossing
    assert single["trace"].bytes_copied("simgpu:0", "simgpu:1") == 0
    own = {(stream.device_index, stream.stream_id) for stream in apart["pipeline"].streams}
    assert {device for device, _ in own} == {0, 1}
    assert {(r.device.index, r.stream) for r in trace} == {(0, 0), (1, 0)} | own
