"""`python -m simgpu fuzz`: what it finds, keeps, reports, and how a failure is run again."""

import contextlib
import io
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase

from simgpu.__main__ import main
from simgpu._fuzz import campaign
from simgpu._fuzz.sessions import SessionSettings, database_of
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


def test_failure_is_found_kept_and_run_again(suite):
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
    assert mended.stdout.splitlines()[-1] == (
        f"{failure['property']} passes now, with --devices 1..8"
    )
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
def test_replay_of_an_empty_database_fails(suite):
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


@pytest.mark.full
def test_suite_without_plugins_is_fuzzed(suite, monkeypatch):
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
    assert done.stdout.endswith("no hypothesis property (a test with @given) in test_it.py\n")
    done = suite.simgpu(*words, "-k", "that", "test_it.py")
    assert done.stdout.endswith(
        "no hypothesis property (a test with @given) in test_it.py fits -k 'that'\n"
    )


OF_CUDA = """
import pytest, torch
from hypothesis import given
from simgpu import strategies

@pytest.mark.skipif(torch.cuda.device_count() < 3, reason="needs three GPUs")
@given(batch=strategies.batches(3))
def test_rows(batch):
    assert len(torch.ones(batch, device="cuda:2")) == batch, "never"
    raise ValueError(f"{batch} rows")
"""


@pytest.mark.full
def test_property_that_names_cuda_is_fuzzed_and_run_again(suite):
    suite(OF_CUDA)
    words = ("--examples", "5", "--jobs", "1", "--devices", "3", "test_it.py")
    without = suite.simgpu("fuzz", *words)
    assert without.returncode == 1
    assert "1 skipped for want of CUDA" in without.stdout
    done = suite.simgpu("fuzz", "--as-cuda", *words)
    assert done.returncode == 1
    assert "ValueError at test_it.py:9\n    0 rows\n    batch=0\n" in done.stdout, done.stdout
    command = shlex.split(done.stdout.splitlines()[-1])
    again = suite.simgpu(*command[3:])
    assert "ValueError: 0 rows" in again.stdout, again.stdout
    assert not re.search(r"hypothesis/core.py:|session_plugin.py:", again.stdout)
    report = json.loads((suite.folder / "fuzz-report.json").read_text())
    (suite.folder / "test_regression.py").write_text(report["failures"][0]["test"])
    for count, outcome in ((3, "1 failed"), (4, "found on 3 devices")):
        words = ("--as-cuda", "--device-count", str(count), "-rs", "test_regression.py")
        assert outcome in suite.pytest(*words).stdout


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
def test_pasted_regression_test_fails_as_the_example_did(suite, mode):
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
    running = subprocess.Popen(
        [sys.executable, *words],
        cwd=suite.folder,
        env={**os.environ, "STARTED": str(started)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Opened for writing too: it does not end where the one closes it before the other opens it.
    with started.open("r+b", buffering=0) as both:
        tried = b""
        while len(tried) < 2 and running.poll() is None:
            if select.select([both], [], [], 1)[0]:
                tried += both.read(2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    assert "here is what was found so far" in err, out
    assert "report: fuzz-report.html" in out
    report = json.loads((suite.folder / "fuzz-report.json").read_text())
    seen = sum(path.stat().st_size for path in suite.folder.glob("seen-*"))
    assert abs(report["total_examples"] - seen) <= 2  # those in which the interrupt arrived
    assert (report["properties"], report["finished"]) == (2, [])


@given(
    status=st.integers(-64, 255), examples=st.integers(0, 2),
    fails=st.booleans(), interrupted=st.booleans(),
)  # fmt: skip
def test_campaign_ends_as_its_session_does(tmp_path, status, examples, fails, interrupted):
    """A crash of Python, and Ctrl-C after a failure, do not count as a success."""
    kept, fails = Tally(), fails and examples > 0
    kept.examples.update({"test_it": examples} if examples else {})
    kept.failures.update({"key": FAILURE} if fails else {})

    def session(self, left):
        self.log.write_text("the end of a log")
        kept.save(self.folder / "1.tally")
        if interrupted:
            raise KeyboardInterrupt
        return status

    page = tmp_path / "report.html"
    options = campaign.CampaignOptions(("tests",), (1, 8), "", page, jobs=1, examples=5)
    with (
        mock.patch.object(campaign.Campaign, "_session", session),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        ended = campaign.run_campaign(options)
    good = (interrupted or status == 0) and examples > 0 and not fails
    assert (ended == 0) == good
    assert 0 <= ended < 256
    log_is_shown = not good and not interrupted and not (status in (0, 1) and fails)
    assert ("the end of a log" in out.getvalue()) == log_is_shown
    assert ("here is what was found so far" in err.getvalue()) == interrupted
    if interrupted or status not in (2, 3, 4, 5):
        report = json.loads(page.with_suffix(".json").read_text())
        assert (report["total_examples"], len(report["failures"])) == (examples, fails)
        assert ("no example was counted" in out.getvalue()) == (
            examples == 0 and (interrupted or status in (0, 1))
        )


@given(jobs=st.integers(1, 64), properties=st.integers(0, 999), minutes=st.integers(1, 99))
def test_properties_share_the_time(jobs, properties, minutes):
    seconds = SessionSettings("", (1, 8), "", jobs, minutes=minutes).seconds(properties)
    assert seconds <= minutes * 60  # also of one property and many jobs
    if properties >= jobs:
        assert seconds * properties == pytest.approx(minutes * 60 * jobs)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.default_int_handler])
def test_only_the_first_interrupt_is_raised(number, before):
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
def test_wrong_options_are_refused(capsys, words, says):
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


def test_redis_database_is_opened_at_the_start(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", SimpleNamespace(Redis=Redis, RedisError=RedisError))
    monkeypatch.delitem(sys.modules, "hypothesis.extra.redis", raising=False)
    assert isinstance(database_of("redis://here:6379/0"), ExampleDatabase)
    with pytest.raises(pytest.UsageError, match=r"redis://there/0: no Redis server .*refused"):
        database_of("redis://there/0")
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "hypothesis.extra.redis")
    with pytest.raises(pytest.UsageError, match="pip install redis"):
        database_of("redis://here:6379/0")
