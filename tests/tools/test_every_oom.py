"""`@pytest.mark.every_oom` and `--faults oom`: which tests pass when every allocation fails."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from dataparallel import DataParallel
from simgpu._pytest.repeats import _with_every_failure

SUITE = """
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

kept = []
runs = []
quick = settings(
    max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@pytest.mark.every_oom
def test_raises_its_error(devices):
    runs.append(len(runs))
    x = torch.ones(8, device=devices[1])
    assert (x + x).sum() == 16


@pytest.mark.parametrize("last", [True])
def test_ran_once_and_for_each_of_four_allocations(last):
    # ones, their sum, the sum of that, and the comparison's answer
    assert len(runs) == 5


@quick
@given(n=st.integers(1, 9))
@pytest.mark.every_oom
def test_a_property(devices, n):
    assert torch.ones(n, device=devices[0]).sum() == n


@pytest.mark.every_oom
def test_raises_something_else(devices):
    try:
        torch.ones(8, device=devices[0])
    except torch.OutOfMemoryError:
        raise KeyError("lost") from None


@pytest.mark.every_oom
def test_keeps_memory(devices):
    x = torch.ones(8, device=devices[0])
    try:
        x + 1
    except torch.OutOfMemoryError:
        kept.append(x)


@quick
@given(n=st.integers(1, 9))
@pytest.mark.every_oom
def test_a_property_that_swallows(devices, n):
    total = 0
    try:
        total = torch.ones(n, device=devices[0]).sum().item()
    except torch.OutOfMemoryError:
        pass
    assert total == n


def test_without_the_marker(devices):
    try:
        torch.ones(8, device=devices[0])
    except torch.OutOfMemoryError:
        raise KeyError("lost") from None
"""


def test_each_allocation_of_a_marked_test_fails_once(pytester):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--devices", "simgpu")
    result.assert_outcomes(passed=4, failed=3)
    reported = result.stdout.str()
    assert "with allocation 0, of 512 bytes on simgpu:0, the test raised KeyError" in reported
    assert "512 bytes on device 0 stay taken, also after gc.collect()" in reported
    assert "the test raised AssertionError: " in reported
    assert "All traceback entries are hidden" not in reported
    chosen = ("-k", "without_the_marker", "--faults", "oom")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *chosen)
    result.assert_outcomes(failed=1)


def test_garbage_of_earlier_tests_hides_no_leak():
    with simgpu.devices(1):
        garbage = [torch.ones(8, device="simgpu:0")]
        garbage.append(garbage)
        del garbage

        kept = []

        def leaks():
            kept.append(torch.ones(8, device="simgpu:0"))
            torch.ones(8, device="simgpu:0")
            kept.clear()

        with pytest.raises(pytest.fail.Exception, match=r"also after gc\.collect"):
            _with_every_failure(leaks)


def raised_anew(how):
    """An error is raised in the place of the one that is handled; called within `except`."""
    handled = sys.exc_info()[1]
    if how == "from the failure":
        raise KeyError("wrapped") from handled
    if how == "from None":
        raise KeyError("lost") from None
    raise KeyError("in the handler")


@given(hows=st.lists(st.sampled_from(["from the failure", "from None", "in the handler"])))
def test_failure_becomes_the_cause_of_another_error(hows):
    """`raise ... from error` says that it is passed on; an error in a handler is one of its own."""

    def fails(hows):
        if not hows:
            return torch.ones(8, device="simgpu:0")
        try:
            fails(hows[1:])
        except Exception:
            raised_anew(hows[0])

    with simgpu.devices(1):
        if set(hows) <= {"from the failure"}:
            _with_every_failure(lambda: fails(hows))
        else:
            with pytest.raises(
                pytest.fail.Exception, match=r"with allocation 0, .* raised KeyError"
            ):
                _with_every_failure(lambda: fails(hows))
        report = simgpu.sweep(lambda: fails(hows), "oom")
    assert bool(report.problems) == (not set(hows) <= {"from the failure"}), str(report)


def trained(wrap, device):
    """One step of a model without lines of its own, which fails in threads without any."""
    net = wrap(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).to(device))
    net(torch.ones(6, 4, device=device)).sum().backward()


def test_memory_kept_by_torch_data_parallel_is_reported(simulated):
    ids = [0, 1]
    with pytest.raises(pytest.fail.Exception) as raised:
        _with_every_failure(
            lambda: trained(lambda net: torch.nn.DataParallel(net, ids), simulated[0])
        )
    text = str(raised.value)
    assert "torch.nn.DataParallel keeps its replicas" in text
    assert "until Python's garbage collector runs" in text
    assert f"({__file__}:{trained.__code__.co_firstlineno + 3})" in text
    _with_every_failure(lambda: trained(lambda net: DataParallel(net, ids), simulated[0]))


def test_memory_in_a_cycle_is_reported_with_the_line_of_the_failure(simulated):
    def test():
        cycle = []
        cycle += [cycle, torch.ones(8, device=simulated[0])]
        try:
            cycle[1] + 1
        except torch.OutOfMemoryError:
            return
        cycle.clear()

    with pytest.raises(pytest.fail.Exception) as raised:
        _with_every_failure(test)
    text = str(raised.value)
    assert f"({__file__}:{test.__code__.co_firstlineno + 4}), 512 bytes on device 0" in text
    assert "objects that hold it refer to each other" in text
    assert "torch.nn" not in text
