"""The pytest plugin: which devices its options give, what a test starts with, and its hints."""

import contextlib
import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._pytest import header
from simgpu._pytest.header import hint_for
from simgpu._pytest.options import DEFAULT_COUNT, SessionOptions, Worker
from simgpu._pytest.pools import CudaPool, SimulatedPool, choose_pool, use_one_thread
from simgpu.errors import InvalidDeviceError


@pytest.mark.parametrize(
    ("options", "worker", "here", "ordinals", "sharers"),
    [
        (("auto", None, False), None, 0, None, 1),
        (("auto", None, False), None, 1, None, 1),
        (("auto", 4, False), None, 1, None, 1),
        (("auto", None, False), None, 2, (0, 1), 1),
        (("auto", 2, False), None, 4, (0, 1), 1),
        (("auto", None, False), None, 16, tuple(range(8)), 1),
        (("simgpu", None, False), None, 4, None, 1),
        (("cuda", None, False), None, 1, (0,), 1),
        (("cuda", 3, False), None, 4, (0, 1, 2), 1),
        (("auto", None, True), None, 1, (0,) * 8, 1),
        (("cuda", 3, True), None, 1, (0,) * 3, 1),
        (("auto", None, False), (3, 4), 8, (6, 7), 1),
        (("cuda", None, False, 4), (1, 4), 8, (4, 5, 6, 7), 2),
        (("cuda", None, False, 1), (2, 3), 3, (2,), 1),
        (("cuda", 4, False), (1, 2), 8, (4, 5, 6, 7), 1),
        (("cuda", 1, False, 2), (1, 2), 8, (2,), 1),
        (("cuda", None, False), (1, 3), 1, (0,), 3),
        (("cuda", None, False), (4, 5), 4, (0, 1), 3),
        (("cuda", 3, True), (1, 4), 1, (0,) * 3, 4),
    ],
)
def test_options_and_worker_choose_the_devices(gpus, options, worker, here, ordinals, sharers):
    gpus(here)
    options = SessionOptions(*options)
    pool = choose_pool(replace(options, worker=worker and Worker(*worker)))
    if ordinals is None:
        assert isinstance(pool, SimulatedPool)
        assert pool.count == (options.count or DEFAULT_COUNT)
        assert "simulated" in pool.describe()
    else:
        assert isinstance(pool, CudaPool)
        assert (pool.ordinals, pool.count, pool.sharers) == (ordinals, len(ordinals), sharers)
        assert pool.distinct == (len(set(ordinals)) == len(ordinals))
        assert ("oversubscribed" in pool.describe()) == (not pool.distinct)
        assert str(len(ordinals)) in pool.describe()
        assert pool.seed == (worker[0] if worker else 0)


# A suite as users have one, run in a session of its own.
SUITE = """
import pytest, torch
from hypothesis import HealthCheck, given, settings, strategies as st

def test_all_devices(devices):
    assert [device.type for device in devices] == ["simgpu"] * 3
    assert [device.index for device in devices] == [0, 1, 2]
    assert torch.ones(1, device=devices[-1]).device == devices[-1]

@pytest.mark.devices(2)
def test_two(devices):
    assert len(devices) == 2

@pytest.mark.devices(2, at_least=True)
def test_two_or_more(devices):
    assert len(devices) == 3

@pytest.mark.devices(4)
def test_four(devices):
    raise AssertionError("never run")

kept, drawn = [], []

@pytest.mark.parametrize("turn", range(3))
def test_every_test_starts_afresh(devices, turn):
    module = torch.simgpu
    assert module.current_device() == 0
    assert module.memory_allocated(devices[1]) == 0
    assert module.max_memory_allocated(devices[1]) == 0
    drawn.append((torch.rand(2).tolist(), torch.rand(2, device=devices[1]).tolist()))
    assert drawn[0] == drawn[-1]
    kept.append(torch.ones(1000, device=devices[1]))
    module.set_device(devices[1])

@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(data=st.data())
def test_examples_share_the_devices_of_their_test(devices, data):
    some = data.draw(st.lists(st.sampled_from(devices), min_size=1, unique=True))
    assert [torch.ones(1, device=device).device for device in some] == some
"""


def test_session_has_the_devices_of_its_options(pytester):
    """All of a suite, under strict warnings; with too few devices a skip that has both numbers."""
    pytester.makepyfile(SUITE)
    options = ("--devices", "simgpu", "--device-count", "3")
    result = pytester.runpytest_inprocess(*options, "-rs", "-W", "error", "--strict-markers")
    result.assert_outcomes(passed=7, skipped=1)
    result.stdout.fnmatch_lines(
        ["devices: 3 simulated GPUs (simgpu)", "*needs 4 devices, this session has 3*"]
    )


MARKED = """
import unittest
import pytest, torch
from hypothesis import given, settings, strategies as st

@pytest.fixture
def x():
    return torch.ones(1, device="simgpu:1")

@pytest.mark.devices(2)
def test_a_function(x):
    assert x.device.index == 1 == torch.simgpu.device_count() - 1

@pytest.mark.devices(3, at_least=True)
class TestMarked(unittest.TestCase):
    def setUp(self):
        self.x = torch.ones(1, device="simgpu:3")

    def test_a_method(self):
        assert torch.simgpu.device_count() == 4 and self.x == 1

@pytest.mark.devices(9)
def test_too_many():
    raise AssertionError("never run")

@pytest.mark.devices(2)
@pytest.mark.parametrize("turn", range(2))
@settings(database=None, max_examples=3)
@given(number=st.integers())
def test_a_property(turn, number):
    assert torch.simgpu.device_count() == 2

@pytest.mark.devices("theirs", 3)
def test_another_marker_of_that_name():
    assert not hasattr(torch, "simgpu") or torch.simgpu.device_count() == 0

def test_no_marker():
    assert torch.simgpu.device_count() == 0
"""


def test_marker_gives_devices_without_the_fixture(pytester):
    pytester.makepyfile(MARKED)
    options = ("--devices", "simgpu", "--device-count", "4", "-W", "error", "--strict-markers")
    result = pytester.runpytest_inprocess(*options, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6, skipped=1)
    result.stdout.fnmatch_lines("1 test skipped: it needs 9 devices, this session has 4")


NAMES = """
import pytest
import torch

def test_no_fixture():  # first: devices give torch the name
    torch.ones(2, device="simgpu:0")

def test_cuda(devices):
    torch.ones(2).cuda()

@pytest.mark.devices(2)
def test_the_marker_alone():
    torch.ones(2).cuda()

def test_no_devices_of_ours():
    torch.ones(2).cuda()

@pytest.mark.devices(2)
def test_an_index(devices):
    torch.ones(2, device="simgpu:2")
"""


@pytest.mark.full
def test_missing_device_gets_a_hint(pytester):
    pytester.makepyfile(NAMES)
    result = pytester.runpytest_subprocess("--devices", "simgpu", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=5)
    none = ["*- simgpu -*", "*take the fixture `devices`, or*"]
    cuda = ["*- simgpu -*", '*say devices[[]0] where it says "cuda", or run it with --as-cuda*']
    index = ["*- simgpu -*", "*--device-count*@pytest.mark.devices(n)*"]
    result.stdout.fnmatch_lines([*none, *cuda, *cuda, *index])
    assert result.stdout.str().count("- simgpu -") == 4


def text_of_error(index, count):
    """What a process says of `index` that has made devices, and has `count` of them now."""
    with simgpu.devices(1), pytest.raises(InvalidDeviceError):
        torch.ones(1, device="simgpu:9")
    there = simgpu.devices(count) if count else contextlib.nullcontext()
    with there, pytest.raises(RuntimeError) as raised:
        torch.ones(1, device=f"simgpu:{index}")
    return str(raised.value)


@given(index=st.integers(8, 9), count=st.integers(0, 8), has=st.booleans(), as_cuda=st.booleans())
def test_no_advice_names_an_option_in_use(index, count, has, as_cuda):
    reported = hint_for(text_of_error(index, count), has, as_cuda) or ""
    assert ("--device-count" in reported) == (count > 0 and (has or as_cuda))
    assert ("take the fixture" in reported) == (count == 0 and not has and not as_cuda)
    reported = hint_for("Torch not compiled with CUDA enabled", has, as_cuda) or ""
    assert ("--as-cuda" in reported) == (has and not as_cuda)


WANTS_CUDA = """
import pytest, torch

@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two of them")
def test_a_condition():
    pass

def test_a_reason():
    pytest.skip("no GPUs here")

@pytest.mark.skip(reason="compares with real GPUs")
def test_of_real_gpus():
    pass

@pytest.mark.skip(reason="slow, and simgpu has no part in it")
def test_another_reason():
    pass

@pytest.mark.xfail
def test_expected():
    torch.ones(2, device="cuda:1")

@pytest.mark.parametrize("n", [1, 2])
def test_fails(n):
    torch.ones(n, device="cuda:1")

def test_fails_before():
    torch.cuda.set_device(1)
"""


@pytest.mark.full
@pytest.mark.parametrize("workers", [[], ["-n", "1"]])
def test_session_without_cuda_counts_tests_that_need_it(pytester, workers):
    """Once, at its end, and not where --as-cuda is given. pytest warns of no module of ours."""
    pytester.makepyfile(WANTS_CUDA)
    options = ("-p", "no:cacheprovider", *workers)
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(skipped=4, failed=3, xfailed=1)
    line = "2 skipped and 3 failed for want of CUDA: pytest --as-cuda runs the session *"
    result.stdout.fnmatch_lines([line])
    assert result.stdout.str().count("--as-cuda") == 1
    assert "PytestAssertRewriteWarning" not in result.stdout.str()
    result = pytester.runpytest_subprocess(*options, "--as-cuda")
    result.assert_outcomes(passed=4, skipped=3, xpassed=1)
    assert "for want of CUDA" not in result.stdout.str()
    result = pytester.runpytest_subprocess(*options, "--as-cuda", "--device-count", "1")
    result.stdout.fnmatch_lines(["2 skipped by a condition that names a number * has 1 GPU, *"])


MODULES = {
    "failed": "import torch\nNET = torch.nn.Linear(1, 1).cuda()",
    "skipped": "import pytest\npytest.skip('CUDA is not there', allow_module_level=True)",
    "": "import pytest\npytest.skip('of another system', allow_module_level=True)",
}


@pytest.mark.parametrize("outcome", MODULES)
def test_session_without_cuda_counts_modules_that_need_it(pytester, monkeypatch, outcome):
    """It makes its model, or skips itself, where it is imported; also after `as_cuda` has ended."""
    with simgpu.as_cuda(1):
        torch.ones(1).cuda()
    monkeypatch.setattr(header, "_has_cuda", lambda: False)
    pytester.makepyfile(f"{MODULES[outcome]}\n\ndef test_it():\n    pass\n")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    wanted = f"1 {outcome} for want of CUDA: pytest --as-cuda runs the session *"
    if outcome:
        result.stdout.fnmatch_lines([wanted])
    else:
        result.stdout.no_fnmatch_line("*for want of CUDA*")


def test_session_without_devices_imports_no_torch(pytester):
    pytester.makepyfile("import sys\ndef test_it(): assert 'torch' not in sys.modules")
    for arguments in ([], ["--devices", "simgpu"]):
        pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=1)


def test_workers_use_the_number_of_threads_of_the_environment(monkeypatch):
    """Else a worker has one thread: test_pools.py."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    before = torch.get_num_threads()
    use_one_thread()
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert torch.get_num_threads() == before


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


WIDER = """
import pytest, torch

pytestmark = pytest.mark.devices({count})

def test_it(module_devices):
    assert len(module_devices) == torch.simgpu.device_count() == {count}
"""


def test_a_module_may_ask_for_a_number(pytester):
    pytester.makepyfile(test_two=WIDER.format(count=2), test_many=WIDER.format(count=9))
    result = pytester.runpytest_inprocess(*OPTIONS, "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines("*needs 9 devices, this session has 4*")


LATE = """
def test_the_module_first(module_devices):
    pass

def test_the_session_late(session_devices):
    raise AssertionError("never run")
"""

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


LATER = "*session_devices are asked for while module_devices are in use, which end before them*"
FEWER = "the test asks for 4 devices, and 2 are there already, made outside of it*--device-count 2*"


@pytest.mark.parametrize(("suite", "says"), [(LATE, LATER), (OWN_FIXTURE, FEWER)])
def test_devices_that_a_test_cannot_have_are_an_error(pytester, suite, says):
    pytester.makepyfile(suite)
    result = pytester.runpytest_inprocess(*OPTIONS)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(says)


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
