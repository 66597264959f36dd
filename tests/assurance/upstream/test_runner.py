"""The runner itself, on a made-up folder of test files: `python -m tests.assurance.upstream`."""

import pytest

from tests.assurance.upstream import processes
from tests.assurance.upstream.files import TestFile

# As a file of PyTorch, for CUDA: its name says so.
CUDA_FILE = """
import os, unittest
import torch

class TestDevices(unittest.TestCase):
    def test_count(self):
        self.assertEqual(torch.cuda.device_count(), 3)

    def test_name(self):
        self.assertEqual(torch.ones(1, device="cuda:2").device, torch.device("cuda:2"))

    def test_sum(self):
        self.assertEqual(1 + 1, 3)

    def test_whose(self):
        self.assertEqual(torch.nn.DataParallel.__module__.partition(".")[0], "dataparallel")

    def test_comm(self):
        self.assertEqual(torch.cuda.comm.gather.__module__.partition(".")[0], "dataparallel")

    def test_left_out(self):
        self.skipTest("not today")

    @unittest.expectedFailure
    def test_known(self):
        self.fail()

class TestEnds(unittest.TestCase):
    def test_a_exits(self):
        os._exit(3)

    def test_b_hangs(self):
        import threading
        threading.Event().wait()

    def test_c_comes_after(self):
        with self.subTest(1):
            pass

if __name__ == "__main__":
    raise RuntimeError("the file is imported")
"""

# As a file of PyTorch for any kind of device.
GENERIC_FILE = """
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

class TestAny(TestCase):
    def test_device(self, device):
        self.assertEqual(torch.ones(1, device=device).device.type, "simgpu")

instantiate_device_type_tests(TestAny, globals())
"""

BROKEN_FILE = "import torch\nraise ImportError('nothing of that name')\n"

TABLE = """
[[expected]]
file = "test_cuda.py"
reason = "they end the process"
tests = ["TestEnds.test_[ab]*"]

[[expected]]
file = "test_cuda.py"
reason = "arithmetic"
tests = ["TestDevices.test_sum"]

[[expected]]
file = "test_cuda.py"
reason = "PyTorch's own is not ours"
tests = ["TestDevices.test_whose", "TestDevices.test_comm"]
data_parallel = "pytorch"
"""


@pytest.fixture
def folder(tmp_path):
    distributed = tmp_path / "test" / "distributed"
    distributed.mkdir(parents=True)
    (tmp_path / "test" / "test_cuda.py").write_text(CUDA_FILE)
    (tmp_path / "test" / "test_torch.py").write_text(GENERIC_FILE)
    (distributed / "test_data_parallel.py").write_text(BROKEN_FILE)
    (tmp_path / "expected.toml").write_text(TABLE)
    return tmp_path


@pytest.fixture
def run(python, folder):
    def run(*arguments, **variables):
        options = ("--pytorch", folder, "--expected", folder / "expected.toml")
        return python(
            "-m", "tests.assurance.upstream", *options, *arguments, PYTHONWARNINGS="", **variables
        )

    return run


def test_expected_failure_does_not_count(run):
    """A test in which the process ends, or does not end, has failed, and the others run."""
    done = run("--devices", 3, "--test-limit", 5, "test_cuda.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "test_cuda.py: 4 passed, 5 failed as expected, 1 skipped, 0 failed unexpectedly, "
        "0 passed unexpectedly"
    ]


def test_unexpected_failure_counts(run):
    """With ours, on other devices, and with a file that cannot be imported."""
    pytest.importorskip("expecttest", reason="PyTorch's own harness imports it")
    chosen = ("-k", "TestDevices.test_[cw]*", "-k", "TestAny*")
    files = ("test_cuda.py", "test_torch.py", "test_data_parallel.py")
    done = run("--devices", 2, "--ours", *chosen, *files)
    assert done.returncode == 1
    cuda, failed, why, generic, nothing, broken, *_, error = done.stdout.split("\n")[:-2]
    assert cuda.startswith("test_cuda.py: 2 passed, 0 failed as expected, 0 skipped, 1 failed"), (
        cuda
    )
    assert (failed, why) == ("  FAILED TestDevices.test_count", "      AssertionError: 2 != 3")
    assert generic.startswith("test_torch.py: 1 passed"), generic
    assert nothing.startswith("test_data_parallel.py: 0 passed"), nothing
    assert broken == "  BROKEN the process ended with status 1:"
    assert error == "ImportError: nothing of that name"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["test_nothing.py"], "test_nothing.py"),
        (["--expected", "no/such.toml", "test_cuda.py"], "no/such.toml"),
        (["--pytorch", "no/such/folder"], "no/such/folder"),
    ],
)
def test_a_wrong_call_names_the_mistake(run, arguments, says):
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("chosen", [{}, {"patterns": ["T.t"]}, {"left_out": ["T.*"]}])
def test_a_file_without_a_test_is_broken(tmp_path, monkeypatch, chosen):
    """It would be as expected whatever it is about; unless all of it was left out on purpose."""
    monkeypatch.setattr(processes, "_wait", lambda *_: 0)
    result = processes.run(TestFile("test_it.py", tmp_path / "test_it.py"), 1, **chosen)
    assert result.outcomes == {}
    assert bool(result.broken) == (not chosen)
