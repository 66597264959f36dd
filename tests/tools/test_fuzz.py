"""`python -m simgpu fuzz`: what it finds, keeps, reports, and how a failure is run again."""

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase

from simgpu.__main__ import main
from simgpu._cli.arguments import device_range
from simgpu._fuzz import campaign, sessions
from simgpu._fuzz.sessions import database_of
from simgpu._fuzz.tally import Failure, Tally
from simgpu._util.interrupts import one_interrupt

FAILURE = Failure("test_it", "ValueError", "", "x.py:1", None, "n=2", None, "6.1")

# A suite as users have them: its profile repeats the same few examples and keeps none.
CONFTEST = """
from hypothesis import HealthCheck, settings
settings.register_profile("ci", database=None, derandomize=True, max_examples=2,
    suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("ci")
"""

BROKEN = """
import pytest, torch
from hypothesis import given, settings, strategies as st
from simgpu import strategies

@pytest.mark.parametrize("extra", [0, 1])
@settings(max_examples=1)  # fewer than a campaign is asked for
@given(data=st.data(), flag=st.booleans())
def test_uneven(devices, data, extra, flag):
    some = data.draw(strategies.device_lists(devices))
    batch = data.draw(strategies.batches(len(some)))
    strategies.tried(error=0.25)
    assert batch <= 4 or batch % len(some) == 0, f"{batch} on {len(some)}"

def test_not_a_property():
    raise AssertionError("never run")
"""


class Suite:
    """A suite in a folder. Commands run beside it, and so do campaigns: their sessions of pytest
    are processes of their own. What pytest runs afterwards is a session in this process.
    """

    def __init__(self, pytester, capfd):
        self.pytester, self.capfd, self.folder = pytester, capfd, pytester.path

    def __call__(self, text):
        self.pytester.makepyfile(conftest=CONFTEST, test_it=text)

    def simgpu(self, *words):
        """`python -m simgpu` with these words: its exit status, what it wrote, and to where."""
        self.capfd.readouterr()
        returncode = main(list(words))
        out, err = self.capfd.readouterr()
        return SimpleNamespace(returncode=returncode, stdout=out, stderr=err)

    def pytest(self, *words):
        done = self.pytester.runpytest_inprocess("-p", "no:cacheprovider", *words)
        return SimpleNamespace(returncode=done.ret, stdout=done.stdout.str())


@pytest.fixture
def suite(pytester, capfd):
    return Suite(pytester, capfd)


def test_a_failure_is_found_kept_and_run_again(suite):
    """The whole way: smallest example, command, regression test, database, report."""
    suite(BROKEN)
    words = ("fuzz", "--examples", "200", "--jobs", "1", "--database", "kept", "test_it.py")
    done = suite.simgpu(*words)
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((suite.folder / "fuzz-report.json").read_text())
    assert len(report["failures"]) == 1, done.stdout + done.stderr
    (failure,) = report["failures"]  # one, though two parametrizations show it
    # Small, though which of the smallest depends on the random examples of this run.
    batch, count = failure["combination"]
    assert 4 < batch <= 7
    assert batch % count > 0
    assert count <= 4
    says = f"{batch} on {count}"
    assert failure["message"].startswith(says)
    assert [path for path in (suite.folder / "kept").rglob("*") if path.is_file()]
    assert set(report["worst_errors"].values()) == {0.25}
    assert report["total_examples"] == sum(report["examples"].values()) > 10
    cells = {(cell["batch"], cell["devices"]): cell for cell in report["combinations"]}
    assert cells[batch, count]["failed"] == cells[batch, count]["examples"] >= 1
    assert failure["command"] in done.stdout

    command = shlex.split(failure["command"])
    assert command[:3] == ["python", "-m", "simgpu"]
    again = suite.simgpu(*command[3:])
    assert again.returncode == 1
    assert says in again.stdout

    suite(BROKEN.replace("batch <= 4 or", "batch >= 0 or"))
    mended = suite.simgpu(*command[3:])
    assert mended.returncode == 0
    assert mended.stdout.splitlines()[-1] == f"{failure['property']} passes now"
    suite(BROKEN.replace("some = ", "data.draw(st.binary(min_size=99)); some = "))
    unfit = suite.simgpu(*command[3:])  # of an example that the property has no more
    assert unfit.returncode == 1
    assert "passes now" not in unfit.stdout
    suite(BROKEN)

    (suite.folder / "test_regression.py").write_text(failure["test"])
    regression = suite.pytest("test_regression.py")
    assert regression.returncode == 1
    assert says in regression.stdout
    assert "1 failed" in regression.stdout


@pytest.mark.full
def test_a_replay_of_what_no_database_keeps_says_that_nothing_was_run(suite):
    """Else a replay in another folder looks as if the mistake were mended."""
    suite(BROKEN)
    done = suite.simgpu("replay", "test_it.py::test_uneven", "--database", "empty")
    assert done.returncode == 4
    assert "empty keeps none of test_it.py::test_uneven" in done.stdout
    mistaken = suite.simgpu("replay", "test_it.py::test_oneven", "--database", "empty")
    assert mistaken.returncode == 4  # pytest's own, which says what it has not found
    assert "keeps none" not in mistaken.stdout
    ordinary = suite.simgpu("replay", "test_it.py::test_not_a_property")
    assert ordinary.returncode == 5
    says = "test_it.py::test_not_a_property is no property of hypothesis"
    assert ordinary.stdout.splitlines()[-1].startswith(says)


def fuzzing(suite, words, started):
    """A campaign in a process of its own, whose examples find the path `started`."""
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=suite.folder,
        env={**os.environ, "STARTED": str(started)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.full
def test_a_suite_that_loads_no_plugins_is_fuzzed_with_ours(suite, monkeypatch):
    """Whichever way it says so; also by several workers."""
    suite(BROKEN.replace("assert batch", "assert devices or batch"))
    (suite.folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:simgpu -p no:xdist\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    done = suite.simgpu("fuzz", "--examples", "2", "--jobs", "2", "test_it.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 examples" in done.stdout


@pytest.mark.full
def test_suite_without_properties_is_reported(suite):
    suite("def test_it(): pass")
    words = ("fuzz", "--examples", "1", "--jobs", "1")
    done = suite.simgpu(*words, "test_it.py")
    assert done.returncode == 5
    assert done.stdout.endswith("no hypothesis property in test_it.py\n")
    done = suite.simgpu(*words, "-k", "that", "test_it.py")
    assert done.stdout.endswith("no hypothesis property in test_it.py fits -k 'that'\n")


BY_PATH = """
import dataclasses
from hypothesis import given, strategies as st
from simgpu import strategies

@dataclasses.dataclass
class Case:
    batch: int

class TestIn:
    @given(case=st.builds(Case, strategies.batches(2)))
    def test_a_class(self, case):
        assert case.batch < 5, f"{case.batch} rows"
"""


@pytest.mark.full
@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_the_pasted_test_works_as_the_suite_is_imported(suite, mode):
    """Also for a method, with a value of a class of the test file."""
    suite(BY_PATH)
    (suite.folder / "pytest.ini").write_text(f"[pytest]\naddopts = --import-mode={mode}\n")
    words = ("--examples", "100", "--jobs", "1", "test_it.py")
    done = suite.simgpu("fuzz", *words)
    (failure,) = json.loads((suite.folder / "fuzz-report.json").read_text())["failures"]
    assert failure["combination"] == [5, 2], done.stdout
    (suite.folder / "test_regression.py").write_text(failure["test"])
    for files in (["test_regression.py"], ["test_it.py", "test_regression.py"]):
        regression = suite.pytest("-k", "test_a_class_", *files)
        assert regression.returncode == 1
        assert "5 rows" in regression.stdout, regression.stdout
        assert "1 failed" in regression.stdout


COUNTED = """
import os, pathlib
import pytest
from hypothesis import given, strategies as st
from simgpu import strategies

here = pathlib.Path(__file__).parent
seen = os.open(here / f"seen-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

@pytest.mark.parametrize("turn", range(2))
@given(batch=strategies.batches(3), number=st.integers())
def test_on_and_on(turn, batch, number):
    os.write(seen, b"x")
    if os.fstat(seen).st_size == 500:
        with open(os.environ["STARTED"], "w") as started:
            started.write("x")
"""


@pytest.mark.full
def test_an_interrupt_loses_no_example(suite):
    """Two processes, each in the middle of a property: what they had tried is in the report."""
    suite(COUNTED)
    started = suite.folder / "started"
    os.mkfifo(started)
    words = ("-m", "simgpu", "fuzz", "--examples", "1000000", "--jobs", "2", "test_it.py")
    running = fuzzing(suite, words, started)
    with started.open() as both:  # ends when each of the two has opened and closed it
        assert both.read() in ("x", "xx")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    assert "here is what was found so far" in err, out
    assert "report: fuzz-report.html" in out
    report = json.loads((suite.folder / "fuzz-report.json").read_text())
    seen = sum(path.stat().st_size for path in suite.folder.glob("seen-*"))
    assert abs(report["total_examples"] - seen) <= 2  # those in which the interrupt arrived
    assert (report["properties"], report["finished"]) == (2, [])


def test_an_interrupt_before_the_first_example_is_no_error_of_the_suite(
    tmp_path, monkeypatch, capsys
):
    def interrupted(self, left):
        self.log.write_text("Traceback of pytest, which was interrupted too")
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign.Campaign, "_session", interrupted)
    page = tmp_path / "report.html"
    words = ["fuzz", "--examples", "1", "--report", str(page), str(Path(__file__).parent)]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "no example was counted" in out
    assert "Traceback" not in out
    assert page.exists()


@given(status=st.integers(-64, 255), examples=st.integers(0, 2), fails=st.booleans())
def test_a_campaign_is_as_good_as_its_sessions(tmp_path, status, examples, fails):
    """Whatever they end with: a crash of Python, or a program that ends the process."""
    kept = Tally()
    kept.examples.update({"test_it": examples} if examples else {})
    kept.failures.update({"key": FAILURE} if examples and fails else {})

    def run(self):
        self.log.write_text("what pytest said last")
        kept.save(self.folder / "1.tally")
        return status

    options = campaign.CampaignOptions(("tests",), (1, 8), "", tmp_path / "report.html", 1)
    with (
        mock.patch.object(campaign.Campaign, "run", run),
        contextlib.redirect_stdout(io.StringIO()) as out,
    ):
        ended = campaign.run_campaign(options)
    good = status == 0 and examples > 0 and not fails
    assert (ended == 0) == good
    assert 0 <= ended < 256
    reported = "what pytest said last" in out.getvalue()
    assert reported == (not good and not (status in (0, 1) and kept.failures))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.default_int_handler])
def test_the_first_interrupt_counts_and_no_other(number, before):
    old = signal.signal(number, before)
    under_nohup = number == signal.SIGHUP and before is signal.SIG_IGN
    expected = contextlib.nullcontext() if under_nohup else pytest.raises(KeyboardInterrupt)
    try:
        with one_interrupt():
            with expected:
                signal.raise_signal(number)
            signal.raise_signal(number)
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, old)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--devices", "0..3"], "'0..3' is no range"),
        (["--devices", "5..3"], "'5..3' is no range"),
        (["--devices", "1..65"], "'1..65' is no range"),
        (["--minutes", "-1"], "'-1' must be a number"),
        (["--minutes", "nan"], "'nan' must be a number"),
        (["--minutes", "inf"], "'inf' must be a number"),
        (["--jobs", "0"], "'0' must be a number from 1 on"),
        (["--examples", "1", "--minutes", "1"], "not allowed with"),
        (["no/such/tests"], "no such tests: no/such/tests"),
        (["--report", "x.json", "tests"], "must name the page"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(capsys, words, says):
    try:
        status = main(["fuzz", *words])
    except SystemExit as stop:
        status = stop.code
    assert status != 0
    seen = capsys.readouterr()
    assert says in seen.out + seen.err


class RedisError(Exception):
    pass


class Redis:
    """What of the redis package is used; a server answers at one address."""

    @classmethod
    def from_url(cls, url):
        client = cls()
        client.url = url
        return client

    def ping(self):
        if self.url != "redis://here:6379/0":
            raise RedisError("connection refused")


def test_a_redis_database_is_asked_at_the_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", SimpleNamespace(Redis=Redis, RedisError=RedisError))
    monkeypatch.delitem(sys.modules, "hypothesis.extra.redis", raising=False)
    assert isinstance(database_of("redis://here:6379/0"), ExampleDatabase)
    with pytest.raises(pytest.UsageError, match=r"redis://there/0: no Redis server .*refused"):
        database_of("redis://there/0")
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "hypothesis.extra.redis")
    with pytest.raises(pytest.UsageError, match="pip install redis"):
        database_of("redis://here:6379/0")


class Interrupted:
    """A session of pytest during which Ctrl-C is pressed so often."""

    def __init__(self, times, status):
        self.times, self.status = times, status

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    def wait(self):
        self.times -= 1
        if self.times >= 0:
            raise KeyboardInterrupt
        return self.status


@given(times=st.integers(0, 3), status=st.integers(0, 5))
def test_ctrl_c_during_a_replay_is_for_pytest(times, status):
    session = Interrupted(times, status)
    with mock.patch.object(subprocess, "Popen", return_value=session):
        assert sessions.replay_schedule("test_it.py::test_it", "S1fAQA", (1, 8)) == status


def test_ranges_of_devices():
    assert device_range("1..8") == (1, 8)
    assert device_range("4") == (4, 4)
