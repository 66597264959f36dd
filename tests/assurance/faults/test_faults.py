"""Every planted fault is caught by the test that is about it, and the test passes without it.

Always on simulated devices: these tests judge the suite, not the hardware.
"""

import ast
import importlib.util
import inspect
import os
import pathlib

import pytest
import torch

from simgpu._distributed import communicators
from simgpu._runtime import clock, instruments
from simgpu._runtime.instruments import hooks
from simgpu._simulation.failures.lost_devices import find_devices
from tests.assurance.faults.table import FAULTS
from tests.support import plant

# As in the files whose tests are run here.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.(script|trace|trace_method)` is deprecated",
    "ignore::torch.jit.TracerWarning",
    "ignore:every replica returned a 0-dimensional tensor",
    "ignore:Was asked to gather along dimension 0",
    "ignore:.*(is|will be) deprecated:FutureWarning",
    "ignore:Using -1 to represent CPU tensor:FutureWarning",
    "ignore:The AccumulateGrad node's stream",
)

# What else than devices a test may ask for.
FIXTURES = ("cuda", "interruptible", "monkeypatch", "pytester", "tmp_path")
# A test can do without these.
OPTIONAL = ("compiler", "no_collector")


@pytest.fixture
def run(request):
    """Run the test of a fault with the fixtures that its signature asks for."""

    def run_test(fault, **how):
        test, arguments = fault.test, fault.arguments()
        for name in inspect.signature(test).parameters:
            if name in ("devices", "simulated"):
                count = plant.devices_wanted(test)
                arguments[name] = request.getfixturevalue("simulated")[:count]
            elif name in FIXTURES:
                arguments[name] = request.getfixturevalue(name)
            elif name in OPTIONAL:
                arguments[name] = None
        plant.run(test, **how, **arguments)

    return run_test


@pytest.fixture
def clean():
    """Undo what a fault may leave behind."""
    time, environment, executor = clock._clock, dict(os.environ), hooks.executor
    yield
    torch._C._set_multithreading_enabled(True)
    clock._clock = time
    while hooks.executor not in (executor, None):
        instruments.remove(hooks.executor)
    os.environ.clear()
    os.environ.update(environment)
    find_devices()
    for communicator in list(communicators._communicators.values()):
        communicator._last.clear()  # calls that never end, for which the next wait would wait
    torch.nn.parallel.DistributedDataParallel._active_ddp_module = None


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_its_test_catches_a_fault(run, clean, fault):
    run(fault, examples=3)
    with fault.planted(), pytest.raises(fault.raises):
        run(fault)


def test_names_are_different():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_each_file_of_dataparallel_has_a_fault():
    (here,) = importlib.util.find_spec("dataparallel").submodule_search_locations
    files = {
        path.relative_to(pathlib.Path(here).parent).with_suffix("").as_posix().replace("/", ".")
        for path in pathlib.Path(here).rglob("*.py")
        if any(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(path.read_text())))
    }
    named = {plant.found_function(edit.where)[0] for fault in FAULTS for edit in fault.edits}
    assert sorted(files - named) == []
