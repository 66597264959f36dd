"""`pytest --devices cuda` on emulated GPUs, held against `expected.toml`.

A test that is not in the table has to pass, and one that is has to fail: the table has the limits
of the emulation, each with its reason, and nothing else.
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.assurance.emulated_cuda.environment import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("expected.toml")
FOLDERS = ("tests/devices", "tests/dataparallel", "tests/hardware")
PLUGIN = "tests.assurance.emulated_cuda.pytest_plugin"


@dataclass(frozen=True)
class Entry:
    """Tests that fail for one reason, as FILE::TEST; `*` stands for any letters."""

    reason: str
    tests: tuple[str, ...]
    may_pass: bool = False  # whether they fail depends on the devices or on earlier tests

    def means(self, test):
        """Whether a test is one of these; a pattern without parameters means all of them."""
        base = test.partition("[")[0]
        wanted = (re.escape(pattern).replace(r"\*", ".*") for pattern in self.tests)
        return any(re.fullmatch(each, test) or re.fullmatch(each, base) for each in wanted)


@dataclass
class Result:
    """The outcomes of a session next to what was expected."""

    passed: int = 0
    skipped: int = 0
    known: dict[str, list[str]] = field(default_factory=dict)  # by reason
    failures: dict[str, str] = field(default_factory=dict)  # unexpected: test -> text
    passes: list[str] = field(default_factory=list)  # unexpected
    broken: str = ""  # why the session did not end by itself

    @property
    def as_expected(self):
        return not (self.failures or self.passes or self.broken)


def read(path=FILE):
    """The entries of the table.

    Raises ValueError for an entry without reason or tests, or with anything else.
    """
    entries = []
    for table in tomllib.loads(path.read_text(encoding="utf-8")).get("expected", []):
        unknown = set(table) - {"reason", "tests", "may_pass"}
        if unknown or not table.get("reason") or not table.get("tests"):
            raise ValueError(f"{path}: expected reason, tests and perhaps may_pass, got {table}")
        entries.append(Entry(**{**table, "tests": tuple(table["tests"])}))
    return entries


def compare(outcomes, entries):
    """Hold outcomes (test -> (outcome, text)) against the table."""
    result = Result()
    for test, (outcome, text) in sorted(outcomes.items()):
        entry = next((entry for entry in entries if entry.means(test)), None)
        if outcome == "skipped":
            result.skipped += 1
        elif outcome == "passed":
            result.passed += 1
            if entry is not None and not entry.may_pass:
                result.passes.append(test)
        elif entry is not None:
            result.known.setdefault(entry.reason, []).append(test)
        else:
            result.failures[test] = text
    return result


def _outcomes(path):
    """The last outcome of each test; a failure stays one, whatever a later phase has."""
    outcomes = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        one = json.loads(line)
        if outcomes.get(one["test"], ("",))[0] != "failed":
            outcomes[one["test"]] = (one["outcome"], one["text"])
    return outcomes


def run(machine, paths=FOLDERS, workers=1, limit=7200, more=()):
    """Run a session of pytest on emulated GPUs and return its Result.

    The session runs in workers of pytest-xdist, so that one that crashes fails its test only.

    Args:
        limit: seconds after which the session is ended.
        more: further arguments of pytest.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--devices", "cuda", "--full"]
    command += ["-p", PLUGIN, "-p", "no:cacheprovider", "-n", str(workers)]
    command += ["--gpus-per-worker", str(max(1, machine.devices // workers))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "outcomes")
        environment = machine.environment(EMULATED_CUDA_OUTCOMES=str(path))
        try:
            done = subprocess.run(
                [*command, *more, *paths],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit,
                check=False,
            )
            # 0: all passed, 1: some failed; anything else means that not all tests ran.
            broken = "" if done.returncode in (0, 1) else done.stdout[-3000:]
        except subprocess.TimeoutExpired:
            broken = f"ended after {limit} s"
        result = compare(_outcomes(path), read())
    result.broken = broken
    return result


def report(result, full=False):
    """The result as text: counts, and what was unexpected."""
    known = sum(map(len, result.known.values()))
    lines = [
        f"{result.passed} passed, {known} failed as expected, {result.skipped} skipped, "
        f"{len(result.failures)} failed unexpectedly, {len(result.passes)} passed unexpectedly"
    ]
    lines += [f"  {len(tests):4} {reason}" for reason, tests in result.known.items()]
    for test, text in result.failures.items():
        errors = [line[2:] for line in text.splitlines() if line.startswith("E ")] or [text[-200:]]
        lines.append(f"  FAILED {test}\n      {errors[0].strip()[:200]}")
        lines += [text] if full else []
    lines += [f"  PASSED {test}, which expected.toml expects to fail" for test in result.passes]
    return "\n".join([*lines, *([f"BROKEN {result.broken}"] if result.broken else [])])
