"""`pytest --as-cuda`: a suite written for CUDA, which knows nothing of simulated devices."""

from types import SimpleNamespace

import pytest
import torch

from simgpu._pytest import as_cuda
from simgpu._pytest.options import add_options

CONFTEST = """
import torch
HERE = torch.cuda.device_count()
"""

SUITE = """
import pytest, torch
from conftest import HERE
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize("index", range(HERE))
def test_every_gpu(index):
    x = torch.ones(3, device=f"cuda:{index}")
    assert x.is_cuda and x.sum().item() == 3


def test_the_fixture(devices):
    assert devices == [torch.device("cuda", index) for index in range(HERE)]
    torch.cuda.set_device(devices[-1])
    assert torch.ones(1).cuda().device == devices[-1]


@pytest.mark.devices(1)
def test_the_fixture_begins_anew(devices):
    assert torch.cuda.current_device() == 0
    assert len(devices) == 1


@pytest.mark.devices(2)
def test_as_many_as_the_marker_says(devices):
    assert torch.cuda.device_count() == 2
    assert nn.DataParallel(nn.Linear(4, 2).cuda()).device_ids == [0, 1]
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="cuda:2")


def test_all_of_them_are_back():
    assert torch.cuda.device_count() == HERE
    assert torch.ones(1, device=f"cuda:{HERE - 1}").sum() == 1
"""


@pytest.fixture
def suite(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    return pytester


def test_suite_for_cuda_passes_without_a_gpu(suite):
    """In a worker too, which is another process."""
    options = ("--devices", "simgpu", "--as-cuda", "--device-count", "3", "-W", "error")
    result = suite.runpytest_inprocess(*options, "-n", "1")
    result.assert_outcomes(passed=7)
    result.stdout.fnmatch_lines("*devices: 3 simulated GPUs (simgpu, as cuda)*")


CHILDREN = """
import os, subprocess, sys
import pytest, torch
import simgpu

def test_a_child_has_them():
    asks = "import torch; print(torch.cuda.device_count(), torch.ones(1, device='cuda:1').device)"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True)
    assert done.stdout == "3 cuda:1\\n", done.stderr

def test_devices_within_are_refused_with_what_to_do():
    with pytest.raises(simgpu.errors.DevicesActiveError, match="take the fixture `devices`") as no:
        with simgpu.devices(2):
            pass
    assert "--as-cuda" in str(no.value)

def test_memory():
    assert torch.cuda.get_device_properties(2).total_memory == 3 * 2**20
"""


@pytest.mark.full
def test_child_processes_have_the_devices(pytester):
    """A worker, and the child of a worker."""
    pytester.makepyfile(CHILDREN)
    options = ("--as-cuda", "--device-count", "3", "--device-memory", "1MiB,2MiB,3MiB", "-n", "1")
    result = pytester.runpytest_inprocess(*options, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)
    line = "*devices: 3 simulated GPUs of 1MiB, 2MiB, 3MiB (simgpu, as cuda)*"
    result.stdout.fnmatch_lines(line)


@pytest.mark.full
def test_only_the_failing_conftest_is_reported(pytester):
    pytester.makeconftest("import torch\nx = torch.ones(1, device='cuda')\nraise KeyError('mine')")
    result = pytester.runpytest_subprocess("--as-cuda")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.lines[-1] == "E   KeyError: 'mine'"
    result.stderr.no_fnmatch_line("*Exception ignored*")


def test_suite_is_skipped_without_the_option(suite, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    suite.runpytest_inprocess("--devices", "simgpu").assert_outcomes(skipped=5)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--devices", "cuda"], "--devices cuda"),
        (["--oversubscribe"], "--oversubscribe"),
        ([], "2 real CUDA devices"),
    ],
)
def test_contradicting_options_are_refused(monkeypatch, words, error):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    namespace = parser.parse(["--as-cuda", "--devices", "simgpu", *words])
    config = SimpleNamespace(known_args_namespace=namespace, add_cleanup=lambda call: None)
    with pytest.raises(pytest.UsageError, match=error):
        as_cuda.pytest_load_initial_conftests(config, [])
