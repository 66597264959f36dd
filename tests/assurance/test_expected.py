"""The tables of expected failures: what they mean, and that those in the repository can be read."""

import itertools
import json
import subprocess
from pathlib import Path

import pytest

from tests.assurance import expected
from tests.assurance.emulated_cuda import environment, suite
from tests.assurance.expected import Entry, Outcome
from tests.assurance.upstream.__main__ import TABLE

ENTRIES = [
    Entry("always", ("a.py::test_one", "a.py::test_two[x]", "b.py::test_[m-o]*")),
    Entry("but one", ("c.py::test_*",), but_not=("c.py::test_m",)),
    Entry("sometimes", ("a.py::test_three",), may_pass=True),
]


def test_expected_outcomes_are_counted_by_reason():
    outcomes = {
        "a.py::test_one[y]": Outcome("failed"),
        "a.py::test_two[x]": Outcome("failed"),
        "b.py::test_many": Outcome("failed"),
        "c.py::test_n": Outcome("failed"),
        "a.py::test_three": Outcome("passed"),
        "a.py::test_four": Outcome("skipped", "why"),
    }
    result = expected.compare(outcomes, ENTRIES)
    assert result.as_expected
    assert (result.passed, result.skipped) == (1, 1)
    assert {reason: len(tests) for reason, tests in result.known.items()} == {
        "always": 3,
        "but one": 1,
    }


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("a.py::test_two[y]", "failed"),
        ("a.py::test_two[x]", "passed"),
        ("b.py::test_paths", "failed"),
        ("c.py::test_m", "failed"),
    ],
)
def test_other_outcomes_are_reported(test, outcome):
    result = expected.compare({test: Outcome(outcome, "E boom")}, ENTRIES)
    assert not result.as_expected
    assert test in suite.report(result)
    assert result.failures == ({test: "E boom"} if outcome == "failed" else {})


@pytest.mark.parametrize(
    "table",
    [
        'tests = ["T.t"]',
        'reason = "r"\ntests = []',
        'reason = "r"\ntests = ["T.t"]\nwhy = "w"',
        'reason = "r"\ntests = ["T.t"]\ndata_parallel = "mine"',
        'reason = "r"\ntests = ["T.*"]\nbut_not = ["T.t"]\nrun = false',
    ],
)
def test_invalid_entry_is_refused(tmp_path, table):
    path = tmp_path / "expected.toml"
    path.write_text(f"[[expected]]\n{table}\n")
    with pytest.raises(ValueError, match=r"expected\.toml"):
        expected.read(path)


def test_the_tables_can_be_read():
    for test in itertools.chain(*(entry.tests for entry in expected.read(suite.FILE))):
        file, _, name = test.partition("[")[0].partition("::")
        text = (environment.ROOT / file).read_text(encoding="utf-8")
        assert f"def {name}".partition("*")[0] in text, test
    assert all(entry.file for entry in expected.read(TABLE))


@pytest.mark.parametrize("status", [1, 2])
def test_session_on_emulated_gpus_reports_passes_and_failures(tmp_path, monkeypatch, status):
    table = tmp_path / "expected.toml"
    table.write_text('[[expected]]\nreason = "r"\ntests = ["a.py::test_[xyz]"]\n')
    monkeypatch.setattr(suite, "FILE", table)
    monkeypatch.setattr(environment.Machine, "environment", lambda self, **more: more)
    seen = [["x", "passed"], ["y", "failed"], ["y", "passed"], ["z", "skipped"], ["w", "failed"]]

    def session(command, env, **options):
        lines = [json.dumps({"test": f"a.py::test_{n}", "outcome": o, "text": n}) for n, o in seen]
        Path(env["EMULATED_CUDA_OUTCOMES"]).write_text("\n".join(lines))
        return subprocess.CompletedProcess(command, status, "it ended")

    monkeypatch.setattr(suite.subprocess, "run", session)
    result = suite.run(environment.Machine())
    assert result.passes == ["a.py::test_x"]
    assert result.known == {"r": ["a.py::test_y"]}
    assert result.failures == {"a.py::test_w": "w"}
    assert (result.skipped, result.broken) == (1, "it ended" if status == 2 else "")
    assert all(
        name in suite.report(result) for name in ("PASSED a.py::test_x", "FAILED a.py::test_w")
    )
    result.failures.clear()
    result.passes.clear()
    assert result.as_expected == (status == 1)
