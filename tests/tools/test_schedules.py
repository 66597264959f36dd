"""`@pytest.mark.schedules`, `--schedules` and `--schedule`: tests under many orders of threads."""

import functools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu import __main__
from simgpu._explore.schedules.strategies import Strategy
from simgpu._explore.schedules.tokens import strategy_in, token_of
from simgpu._fuzz import sessions
from simgpu._fuzz.session_plugin import ExampleRecorder
from simgpu._pytest import repeats
from simgpu._strategies import examples
from tests.support.ordering_faults import lost_update

SUITE = """
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st


def sum_of(device, count=2):
    total = torch.zeros(1, device=device)

    def add():
        total.copy_(total.clone() + 1)

    threads = [threading.Thread(target=add) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(total)


@pytest.mark.schedules(30)
def test_marked(devices, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sum_of(devices[0]) == 2


def test_alone(devices):
    assert sum_of(devices[0]) in (1, 2)


@settings(database=None, derandomize=True, max_examples=20)
@given(number=st.integers(2, 3))
def test_property(module_devices, number):
    assert sum_of(module_devices[0], number) == number
"""
COUNTED = """
import collections

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

RUNS = collections.Counter()
few, many = pytest.mark.schedules(2), pytest.mark.schedules(6)


@pytest.mark.parametrize("n", [pytest.param(2, marks=few), pytest.param(6, marks=many), 1])
@settings(database=None, max_examples=1)
@given(number=st.just(0))
def test_property(n, number):
    RUNS[n] += 1


def test_runs():
    assert RUNS == {2: 2, 6: 6, 1: 1}
"""
TOKEN = r"simgpu replay (S1\S+)"


def test_failure_prints_a_token_that_repeats_it(pytester, monkeypatch):
    """From a folder within the suite's, and whatever folder the test has gone to."""
    pytester.makeini("[pytest]")
    monkeypatch.chdir(pytester.mkpydir("within"))
    Path("test_it.py").write_text(SUITE)
    arguments = ("-p", "no:cacheprovider", "--device-count", "1")
    result = pytester.runpytest(*arguments, "-k", "marked or alone")
    result.assert_outcomes(passed=1, failed=1)
    (token,) = set(re.findall(TOKEN, result.stdout.str()))
    assert len(token) < 100
    name = "test_it.py::test_marked"
    for _ in range(2):
        again = pytester.runpytest(*arguments, "--schedule", token, name)
        again.assert_outcomes(failed=1)
        again.stdout.fnmatch_lines(["*assert 1.0 == 2*"])
    mended = SUITE.replace("total.copy_(total.clone() + 1)", "total.add_(1)")
    Path("test_it.py").write_text(mended)
    pytester.runpytest(*arguments, "--schedule", token, name).assert_outcomes(passed=1)
    started = []
    monkeypatch.setattr("simgpu._fuzz.sessions.replay_schedule", lambda *a: started.append(a) or 1)
    assert __main__.main(["replay", token]) == 1
    assert __main__.main(["replay", name, token]) == 1
    assert started[0] == started[1]
    assert started[0][:2] == (name, token)


@pytest.mark.full
def test_schedule_is_replayed_on_its_own_devices(tmp_path, monkeypatch, capfd):
    """Whatever devices the environment gives a process, and whatever else the suite asks for."""
    monkeypatch.chdir(tmp_path)
    Path("pytest.ini").write_text("[pytest]\naddopts = --failed-first -p no:simgpu\n")
    Path("test_it.py").write_text("def test_it(devices):\n    assert len(devices) == 3\n")
    for name, value in {"COUNT": "2", "MEMORY": "1GiB"}.items():
        monkeypatch.setenv(f"SIMGPU_DEVICE_{name}", value)
    token = token_of(Strategy(), [])
    assert sessions.replay_schedule("test_it.py::test_it", token, (1, 3), False) == 0
    assert capfd.readouterr().out.splitlines()[-1].startswith("test_it.py::test_it passes now")
    assert not Path(".pytest_cache").exists()


@pytest.mark.full
def test_property_draws_and_shrinks_its_schedule(pytester):
    """To one deviation, and the fewest threads that have it; the token is of this example."""
    pytester.makepyfile(test_it=SUITE)
    arguments = ("-p", "no:cacheprovider", "--device-count", "1", "--schedules", "20")
    result = pytester.runpytest(*arguments, "-k", "property or alone")
    result.assert_outcomes(passed=1, failed=1)
    assert "number=2," in result.stdout.str()
    (token,) = set(re.findall(TOKEN, result.stdout.str()))
    assert len(strategy_in(token)[0].ranks) == 1
    again = pytester.runpytest(*arguments[:4], "--schedule", token, "-k", "property")
    again.assert_outcomes(failed=1)
    assert "assert 1.0 == 2" in again.stdout.str()
    assert "Diverged" not in again.stdout.str()
    pytester.makepyfile(test_it=SUITE.replace("total.copy_(total.clone() + 1)", "total.add_(1)"))
    again = pytester.runpytest(*arguments[:4], "--schedule", token, "-k", "property")
    again.assert_outcomes(passed=1)


def test_each_case_of_a_property_has_its_schedules(pytester):
    pytester.makepyfile(test_it=COUNTED)
    pytester.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=4)


def drawn(test, n):
    """A test of hypothesis under schedules that it draws."""
    around = functools.partial(repeats._under_drawn_schedules, n=n, token=None)
    return repeats.run_through(test, around)


@pytest.mark.parametrize(("n", "most"), [(3, 5), (12, 5), (15, 5), (1, 1)])
def test_examples_of_a_property_run_under_n_schedules_in_all(n, most):
    seen = []

    @settings(max_examples=most, database=None)
    @given(st.integers())
    def holds(number):
        seen.append(number)

    inner = holds.hypothesis.inner_test
    holds.hypothesis.inner_test = drawn(inner, n)
    holds()
    assert n <= len(seen) < n + most
    assert len(set(seen)) == most


def test_replay_of_an_unknown_token_fails(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert __main__.main(["replay", "S1fAAA"]) == 4
    assert "no test is known here" in capsys.readouterr().out


@settings(database=None, derandomize=True, max_examples=30)
@given(wanted=st.just(2.0))
def of_two(simulated, wanted):
    """The suite that is fuzzed below; no test itself, for it fails."""
    assert float(lost_update(simulated)) == wanted


def test_fuzz_reports_name_the_schedule(simulated, monkeypatch):
    """So that the test which it writes fails as the example did, and in no other order."""
    sound = of_two.hypothesis.inner_test
    recorder = ExampleRecorder(SimpleNamespace(folder="."))
    monkeypatch.setattr(ExampleRecorder, "_save", lambda self: None)
    item = SimpleNamespace(
        nodeid="test_it.py::of_two", path="test_it.py", instance=None, cls=None,
        funcargs={"simulated": simulated},
        config=SimpleNamespace(getoption=lambda name: "prepend"),
        get_closest_marker=lambda name: None,
    )  # fmt: skip
    scheduled = recorder.counted(item, drawn(sound, 1))
    monkeypatch.setattr(of_two.hypothesis, "inner_test", scheduled)
    examples.set_listener(recorder.on_example, recorder.on_schedule)
    try:
        with pytest.raises(AssertionError):
            of_two(simulated)
    finally:
        examples.set_listener(None)
    monkeypatch.undo()
    (failure,) = recorder.tally.failures.values()
    assert failure.schedule in failure.test
    assert len(strategy_in(failure.schedule)[0].ranks) == 1
    space = {}
    exec(failure.test, space)
    (pasted,) = [found for name, found in space.items() if name.startswith("of_two_")]
    for _ in range(2):
        with pytest.raises(AssertionError):
            pasted(simulated)
    exec(failure.test.replace(f"replay={failure.schedule!r}", ""), space)
    space[pasted.__name__](simulated)
