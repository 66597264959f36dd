"""Every planted fault is caught by the property that is about it.

Always on simulated devices: these tests judge the suite, not the hardware.
"""

import functools
import inspect

import pytest
import torch

from tests.planted_faults.faults import FAULTS
from tests.support.plant import Edit, devices_wanted, run

# As in dataparallel/test_transforms.py, of which properties are run here.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

PROPERTIES = list({str(fault.caught_by): fault.caught_by for fault in FAULTS}.values())


def name_of(test):
    if isinstance(test, functools.partial):
        values = [getattr(value, "__name__", str(value)) for value in test.keywords.values()]
        return "-".join([test.func.__name__, *values])
    return test.__name__


def run_on(test, devices, examples=None, seen=None):
    """Run `test` with the arguments that its signature asks for."""
    bound = {}
    if isinstance(test, functools.partial):
        test, bound = test.func, test.keywords
    parameters = inspect.signature(test).parameters
    bound = bound | dict.fromkeys({"no_collector", "compiler"} & parameters.keys())
    for wanted in takes_devices(test):
        bound = {**bound, wanted: devices[: devices_wanted(test)]}
    run(test, examples, seen, **bound)


def takes_devices(test):
    """The arguments of `test` that are devices; one without any makes its own."""
    whole = test.func if isinstance(test, functools.partial) else test
    return [
        name for name in ("simulated", "devices") if name in inspect.signature(whole).parameters
    ]


@pytest.fixture
def wanted_devices(request):
    """Simulated devices for a test that takes some, and none for one that makes its own."""
    return lambda test: request.getfixturevalue("simulated") if takes_devices(test) else []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_property_catches_it(wanted_devices, fault, record_property):
    seen = []
    record_property("planted fault", fault.name)
    try:
        devices = wanted_devices(fault.caught_by)
        with fault.planted(), pytest.raises(fault.raises):
            run_on(fault.caught_by, devices, seen=seen)
    finally:
        record_property("examples", len(seen))
        torch._C._set_multithreading_enabled(True)  # which a fault may have left off


@pytest.mark.parametrize("test", PROPERTIES, ids=name_of)
def test_without_a_fault_it_holds(wanted_devices, test):
    """Run in the same way as above: what fails there fails because of the fault."""
    run_on(test, wanted_devices(test), examples=3)


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
