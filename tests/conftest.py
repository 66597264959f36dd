"""Fixtures of the whole suite: `simulated`, `cuda`, `gpus`, `python` and others.

The fixture `devices` comes from the plugin (`simgpu.pytest_plugin`), the options of the suite from
those that `pytest_plugins` names.
"""

import gc
import importlib
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest

pytest_plugins = ["pytester", "tests.support.profiles", "tests.support.tiers"]

ROOT = Path(__file__).parents[1]


thawed = False


def pytest_collection_finish():
    """Let the garbage collector look at what tests make, and not at all modules and tests."""
    stock = gc.unfreeze

    def unfreeze():
        global thawed
        thawed = True
        stock()

    gc.unfreeze = unfreeze
    gc.freeze()


def pytest_runtest_logfinish():
    """Freeze again what `simgpu.asynchronous` has looked through: a collection takes 0.2 s else."""
    global thawed
    if thawed:
        thawed = False
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _covered_gpus():
    """On a machine with GPUs, `as_cuda` covers them as with `force`: tests mean simulated ones."""
    import torch

    if torch.cuda.is_available():
        from simgpu._devices import block

        block._check_no_cuda = lambda force: None


@pytest.fixture
def simulated():
    """Simulated devices whatever the session runs on: for what only a simulator can show."""
    import simgpu

    with simgpu.devices(8) as devices:
        yield devices


@pytest.fixture
def cuda():
    """Four simulated devices as CUDA, whatever the session runs on."""
    import simgpu

    with simgpu.as_cuda(4, force=True) as devices:
        yield devices


@pytest.fixture(scope="module")
def eight_devices():
    """Eight simulated devices as CUDA for all worlds of ranks of a file."""
    import simgpu

    with simgpu.as_cuda(8) as devices:
        yield devices


@pytest.fixture
def gpus(monkeypatch):
    """Say how many real GPUs there are."""
    from simgpu._pytest import pools

    def there_are(count):
        monkeypatch.setattr(pools, "gpu_count", lambda: count)

    return there_are


@pytest.fixture(scope="session")
def everything_imported():
    """A session in this process forgets what it imported first, and must not import it twice."""
    import simgpu

    for module in pkgutil.walk_packages(simgpu.__path__, "simgpu."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    importlib.import_module("torch._dynamo")  # by PyTorch itself, where a function needs it
    with simgpu.as_cuda(1, force=True):
        pass


@pytest.fixture
def pytester(everything_imported, pytester):
    """Sessions inside this session: in this process wherever a process is not the subject."""
    return pytester


@pytest.fixture
def no_collector():
    """Nothing is collected but by call, and what is here already is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def interruptible():
    """Let Ctrl-C raise KeyboardInterrupt, which a session started in the background ignores."""
    outer = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, outer)


@pytest.fixture
def python():
    """Run a fresh interpreter, in the root folder or in `cwd`: `python("-m", "simgpu", ...)`."""

    def run(*args, cwd=ROOT, stdin=None, **variables):
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SIMGPU_")
        }
        environment |= {"PYTHONWARNINGS": "error", "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, *map(str, args)],
            cwd=cwd,
            env=environment | variables,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=1800,  # a limit for what hangs: a busy machine takes minutes for a fuzzing
            check=False,
        )

    return run


@pytest.fixture
def reader(python, tmp_path):
    """A folder with the examples, and an interpreter that finds this repository's packages."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path, partial(python, PYTHONPATH=str(ROOT), PYTEST_XDIST_AUTO_NUM_WORKERS="1")


@pytest.fixture
def compiler():
    """torch.compile with nothing compiled, before and after."""
    import torch

    with warnings.catch_warnings():
        # Triton, where it is installed, is imported here, and has functions compiled by it.
        warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
        torch.compiler.reset()
    yield
    torch.compiler.reset()
