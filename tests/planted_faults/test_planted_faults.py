"""Every planted fault is caught by the property that is about it.

Always on simulated devices: these tests judge the suite, not the hardware.
"""

import functools
import importlib
import inspect
import os
import pkgutil
import re

import pytest
import torch

from simgpu._distributed import communicators
from simgpu._runtime import clock, instruments
from simgpu._runtime.instruments import hooks
from simgpu._simulation.failures.lost_devices import find_devices
from tests import dataparallel
from tests.planted_faults.faults import FAULTS
from tests.support.plant import Edit, devices_wanted, run

# As in the files whose properties are run here.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.(script|trace|trace_method)` is deprecated",
    "ignore::torch.jit.TracerWarning",
    "ignore:every replica returned a 0-dimensional tensor",
    "ignore:Was asked to gather along dimension 0",
    "ignore:indexing with dtype torch.uint8 is now deprecated",
    "ignore:.*(is|will be) deprecated:FutureWarning",
    "ignore:torch.chain_matmul is deprecated",
    "ignore:Using -1 to represent CPU tensor:FutureWarning",
    "ignore:The AccumulateGrad node's stream",
    "ignore:Sparse (CSR|CSC|BSR|BSC) tensor support",
    "ignore:The PyTorch API of nested",
)

# What else than devices a test that has a fault may ask for.
FIXTURES = ("cuda", "interruptible", "monkeypatch", "pytester", "record_property", "tmp_path")

PROPERTIES = list({str(fault.caught_by): fault.caught_by for fault in FAULTS}.values())


def name_of(test):
    if isinstance(test, functools.partial):
        values = [getattr(value, "__name__", str(value)) for value in test.keywords.values()]
        # Each process has its functions elsewhere, and all have to collect the same names.
        return re.sub(" at 0x[0-9a-f]+", "", "-".join([test.func.__name__, *values]))
    return test.__name__


@pytest.fixture
def arguments_of(request):
    """The arguments that a test's signature asks for; one without devices makes its own."""

    def ask(test):
        arguments = {}
        if isinstance(test, functools.partial):
            test, arguments = test.func, dict(test.keywords)
        for name in inspect.signature(test).parameters:
            if name in ("devices", "simulated"):
                arguments[name] = request.getfixturevalue("simulated")[: devices_wanted(test)]
            elif name in FIXTURES:
                arguments[name] = request.getfixturevalue(name)
            elif name in ("no_collector", "compiler"):
                arguments[name] = None  # the test can do without
        return arguments

    return ask


def run_on(test, arguments, examples=None, seen=None):
    run(test.func if isinstance(test, functools.partial) else test, examples, seen, **arguments)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_property_catches_it(arguments_of, fault, record_property):
    seen, time, environment = [], clock._clock, dict(os.environ)
    executor = hooks.executor
    record_property("planted fault", fault.name)
    try:
        arguments = arguments_of(fault.caught_by)
        with fault.planted(), pytest.raises(fault.raises):
            run_on(fault.caught_by, arguments, seen=seen)
    finally:
        record_property("examples", len(seen))
        # What a fault may have left behind, which is no business of the next test's.
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


@pytest.mark.parametrize("test", PROPERTIES, ids=name_of)
def test_without_a_fault_it_holds(arguments_of, test):
    """Run in the same way as above: what fails there fails because of the fault."""
    run_on(test, arguments_of(test), examples=3)


def double(number):
    return number * 2


def test_a_fault_is_planted_and_taken_out_again():
    edit = Edit(f"{__name__}:double", "* 2", "* 3")
    with edit.planted():
        assert double(5) == 15
    assert double(5) == 10


def test_a_fault_that_no_longer_fits_says_so():
    edit = Edit(f"{__name__}:double", "number + 2", "number + 3")
    with pytest.raises(LookupError, match=r"stands 0 times in .*double"), edit.planted():
        pass


def test_names_are_different():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_every_property_of_data_parallel_has_a_fault():
    """No property of DataParallel stands there that nothing was seen to break."""
    caught = {getattr(test, "func", test) for test in PROPERTIES}
    modules = [
        importlib.import_module(module.name)
        for module in pkgutil.walk_packages(dataparallel.__path__, f"{dataparallel.__name__}.")
    ]
    properties = {
        test
        for module in modules
        for name, test in vars(module).items()
        if name.startswith("test_") and hasattr(test, "hypothesis")
    }
    assert len(properties) > 100
    assert sorted(test.__qualname__ for test in properties - caught) == []
