"""Devices for longer than a test: of a module, of the session, of a fixture, of the process."""

import pytest

OPTIONS = ("--devices", "simgpu", "--device-count", "4", "-W", "error", "-p", "no:cacheprovider")

MODEL = """
import pytest, torch

@pytest.fixture(scope="{scope}")
def model({scope}_devices):
    net = torch.nn.Linear(2, 2).to({scope}_devices[1])
    return net

built = []

@pytest.mark.parametrize("turn", range(2))
def test_the_model_is_built_once(model, turn):
    built.append(id(model))
    assert len(set(built)) == 1
    assert model(torch.ones(1, 2, device="simgpu:1")).device.index == 1
    torch.simgpu.set_device(3)

@pytest.mark.devices(2)
def test_the_first_of_them_afresh(model, devices):
    assert devices == [torch.device("simgpu", 0), torch.device("simgpu", 1)]
    assert torch.simgpu.device_count() == 2 and torch.simgpu.current_device() == 0
    assert model.weight.device == devices[1]
    assert torch.simgpu.memory_allocated(devices[1]) > 0
    first.append(torch.rand(2, device=devices[0]).tolist())

first = []

def test_all_of_them_and_the_same_seed(devices):
    assert len(devices) == 4
    assert torch.rand(2, device=devices[0]).tolist() == first[0]
"""

AFTER = """
import torch

def test_the_next_module(devices):
    assert (torch.simgpu.memory_allocated(1) > 0) == {stay}
"""


@pytest.mark.parametrize("scope", ["module", "session"])
def test_model_of_a_wider_fixture_is_built_once(pytester, scope):
    pytester.makepyfile(
        test_a_model=MODEL.format(scope=scope), test_b_after=AFTER.format(stay=scope == "session")
    )
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=5)


MARKED = """
import pytest, torch

pytestmark = pytest.mark.devices({count})

def test_it(module_devices):
    assert len(module_devices) == torch.simgpu.device_count() == {count}
"""


def test_a_module_may_ask_for_a_number(pytester):
    pytester.makepyfile(test_two=MARKED.format(count=2), test_many=MARKED.format(count=9))
    result = pytester.runpytest_inprocess(*OPTIONS, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines("*needs 9 devices, this session has 4*")


LATE = """
def test_the_module_first(module_devices):
    pass

def test_the_session_late(session_devices):
    raise AssertionError("never run")
"""


def test_wider_devices_cannot_be_asked_for_second(pytester):
    pytester.makepyfile(LATE)
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=1, errors=1)
    says = "session_devices are asked for while module_devices are in use, which end before them*"
    result.stdout.fnmatch_lines(f"*{says}")


OWN_FIXTURE = """
import pytest, torch, simgpu

@pytest.fixture(scope="session", autouse=True)
def two():
    with simgpu.devices(2) as devices:
        yield devices

@pytest.mark.devices(2)
def test_enough(devices, two):
    assert devices == two

def test_too_many(devices):
    raise AssertionError("never run")
"""


def test_own_fixture_with_fewer_devices_is_an_error(pytester):
    pytester.makepyfile(OWN_FIXTURE)
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        "the test asks for 4 devices, and 2 are there already, made outside of it*"
        "--device-count 2 or @pytest.mark.devices(2)*"
    )


OF_THE_PROCESS = """
import pytest, torch

kind = "{kind}"
x = torch.ones(1, device=f"{{kind}}:1")

def test_it(devices):
    assert devices == [torch.device(kind, 0), torch.device(kind, 1)]
    assert (x + 1).device == devices[1]

@pytest.mark.devices(1)
def test_one(devices):
    assert torch.get_device_module(kind).device_count() == 1

@pytest.mark.devices(3)
def test_three(devices):
    raise AssertionError("never run")
"""


@pytest.mark.full
@pytest.mark.parametrize(("kind", "workers"), [("cuda", ()), ("simgpu", ("-n", "1"))])
def test_devices_of_the_environment_are_used(pytester, monkeypatch, kind, workers):
    monkeypatch.setenv("SIMGPU_DEVICE_COUNT", "2")
    monkeypatch.setenv("SIMGPU_DEVICE_MEMORY", "1GiB")
    if kind == "cuda":
        monkeypatch.setenv("SIMGPU_AS_CUDA", "1")
    pytester.makepyfile(OF_THE_PROCESS.format(kind=kind))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *workers)
    result.assert_outcomes(passed=2, skipped=1)
    line = "*devices: 2 simulated GPUs of 1GiB (simgpu, by SIMGPU_DEVICE_COUNT)*"
    result.stdout.fnmatch_lines(line)
