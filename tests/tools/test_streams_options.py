"""`--async` and `--races`, on the command line and in pytest: what an unmodified program shows."""

import contextlib
import io
import sys

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from simgpu._cli.run_script import _after_our_frames, overlapping, reporting_races
from simgpu._explore.asynchronous import executor as asynchronous_executor
from simgpu.errors import DeviceLostError


@pytest.mark.without("--async", reason="begins it itself")
@pytest.mark.parametrize("status", ["none", None, 0, 3, "failed"])
def test_errors_in_queues_are_raised_at_the_end_of_a_script(status):
    """However it ends; one that ends otherwise has reported already what is wrong."""
    ends_well = status in ("none", None, 0)
    with simgpu.devices(1), contextlib.ExitStack() as process:
        x, index = torch.ones(3).to("simgpu:0"), torch.tensor([7]).to("simgpu:0")

        def program(executor):
            process.callback(end, executor)
            x.index_select(0, index)
            if status != "none":
                raise SystemExit(status)

        def end(executor):
            with contextlib.suppress(DeviceLostError):
                asynchronous_executor.end(executor)

        caught = pytest.raises(DeviceLostError if ends_well else SystemExit)
        with caught as raised, overlapping(None) as own:
            program(own)
        assert own.pending == (not ends_well)
    if ends_well:  # nothing of the program's is in the traceback
        assert _after_our_frames(raised.tb) is None


@pytest.mark.without("--async", "--races", reason="looks for races itself")
@given(
    waits=st.lists(st.booleans(), max_size=3),
    code=st.sampled_from(["no exit", None, 0, 3, "words"]),
)
@example(waits=[False], code=0)
def test_number_of_races_of_a_program_is_printed(waits, code):
    """Also that it had none; the status says it too, also where the program ends by sys.exit(0)."""
    expected = "no race" if all(waits) else "1 race"  # which is between the same two lines
    ended = "no exit"
    with contextlib.redirect_stderr(io.StringIO()) as caught:
        try:
            with simgpu.devices(1), reporting_races():
                for each in waits:
                    y = torch.ones(3, device="simgpu:0") + 1
                    side = torch.simgpu.Stream()
                    if each:
                        side.wait_stream(torch.simgpu.current_stream())
                    with torch.simgpu.stream(side):
                        y * 2
                    torch.simgpu.synchronize()
                if code != "no exit":
                    sys.exit(code)
        except SystemExit as end:
            ended = end.code
    assert caught.getvalue().endswith(f"simgpu run --races: {expected}\n")
    assert ended == (code if all(waits) or code in (3, "words") else 1)


SUITE = """
import pytest, torch
from hypothesis import given, settings, strategies as st

def doubled(device, waits):
    side = torch.simgpu.Stream(device)
    y = torch.ones(3, device=device) + 1
    if waits:
        side.wait_stream(torch.simgpu.current_stream(device))
    with torch.simgpu.stream(side):
        return (y * 2).tolist()

def test_no_wait(devices):
    assert doubled(devices[0], False) == [4.0] * 3

def test_wait(devices):
    assert doubled(devices[0], True) == [4.0] * 3

@settings(database=None, max_examples=3)
@given(waits=st.booleans())
def test_property(devices, waits):
    assert doubled(devices[0], waits) == [4.0] * 3

class TestLeftOut:
    @pytest.mark.without("--async", "--races", reason="on purpose")
    def test_left_out(self, devices):
        assert doubled(devices[0], False) == [4.0] * 3

    def test_wait_after(self, devices):
        assert doubled(devices[0], True) == [4.0] * 3

@pytest.mark.without("--faults", reason="another option")
def test_no_wait_either(devices):
    assert doubled(devices[0], False) == [4.0] * 3
"""


@pytest.mark.without("--async", "--races", reason="runs tests that forget to wait")
@pytest.mark.parametrize(
    ("option", "text"),
    [("--async", "assert [[]nan, nan, nan[]] == "), ("--races", "race: mul.Scalar on simgpu:0, ")],
)
def test_test_without_a_wait_fails(pytester, option, text):
    pytester.makepyfile(SUITE)
    session = ("-p", "no:cacheprovider", "--devices", "simgpu", "-W", "error", "--strict-markers")
    seen = pytester.runpytest_inprocess(*session, "-rf", option)
    seen.assert_outcomes(passed=3, failed=3)
    failed = {line.split("::")[1].split()[0] for line in seen.outlines if "FAILED " in line}
    assert failed == {"test_no_wait", "test_property", "test_no_wait_either"}
    seen.stdout.fnmatch_lines([f"*{text}*", f"1 test ran without {option} (@pytest.mark.without)"])


FAILING = """
import pytest, torch

def wrong(devices):
    x = torch.ones(3, device=devices[0])
    with torch.simgpu.stream(torch.simgpu.Stream()):
        return x * 2

def test_compared(devices): assert wrong(devices).sum().item() == 5
def test_of_another_type(devices): {}[wrong(devices)]
def test_that_gives_up(devices): pytest.fail(str(wrong(devices).shape))
def test_in_a_rank():
    import simgpu
    simgpu.ranks(2, lambda rank: wrong([f"cuda:{rank}"]).missing)
"""


@pytest.mark.without("--async", "--races", reason="runs tests that forget to wait")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_failing_test_reports_its_races(pytester):
    """And not of those of pytest, which prints the values that it has compared."""
    pytester.makepyfile(FAILING)
    done = pytester.inline_run("-p", "no:cacheprovider", "--devices", "simgpu", "--races")
    reports = [report for report in done.getreports("pytest_runtest_logreport") if report.failed]
    assert len(reports) == 4
    for report in reports:
        assert "race: mul.Scalar on " in str(report.longrepr)
        assert "_pytest/" not in str(report.longrepr)
