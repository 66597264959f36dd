"""`expected.toml`: which of PyTorch's tests fail on simulated devices, and why."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.assurance.upstream.processes import Outcome

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).with_name("expected.toml")


@dataclass(frozen=True)
class Entry:
    """Tests of one file that fail for one reason; patterns as of the shell."""

    file: str
    reason: str
    tests: tuple[str, ...]
    but_not: tuple[str, ...] = ()  # tests that match and are none of them
    data_parallel: str = "both"  # with whose: "pytorch", "ours" or "both"
    run: bool = True  # False: they are left out

    def means(self, test: str) -> bool:
        """Whether a test of the file is one of these."""
        return _matches(test, self.tests) and not _matches(test, self.but_not)

    def is_for(self, file: str, *, ours: bool) -> bool:
        """Whether the entry says something of a file that is run with ours, or with PyTorch's."""
        return self.file == file and self.data_parallel in ("both", "ours" if ours else "pytorch")


@dataclass
class Comparison:
    """What a file's outcomes are, next to what was expected."""

    passed: int = 0
    skipped: int = 0
    known: dict[str, list[str]] = field(default_factory=dict)  # by reason
    unexpected_failures: list[str] = field(default_factory=list)
    unexpected_passes: list[str] = field(default_factory=list)

    @property
    def as_expected(self) -> bool:
        """Whether nothing was unexpected."""
        return not self.unexpected_failures and not self.unexpected_passes


def _matches(test: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(test, pattern) for pattern in patterns)


def read(path: Path = FILE) -> list[Entry]:
    """The entries of a table.

    Raises:
        ValueError: an entry lacks something, or says something that has no meaning here.
    """
    entries = []
    for table in tomllib.loads(path.read_text(encoding="utf-8")).get("expected", []):
        unknown = set(table) - {"file", "reason", "tests", "but_not", "data_parallel", "run"}
        if unknown or not all(table.get(name) for name in ("file", "reason", "tests")):
            raise ValueError(f"{path}: an entry needs file, reason and tests, got {table}")
        lists = {name: tuple(table.get(name, ())) for name in ("tests", "but_not")}
        entry = Entry(**{**table, **lists})
        if entry.data_parallel not in ("both", "ours", "pytorch"):
            raise ValueError(f"{path}: data_parallel must be both, ours or pytorch: {entry}")
        if entry.but_not and not entry.run:
            raise ValueError(f"{path}: tests that are left out are told without but_not: {entry}")
        entries.append(entry)
    return entries


def compare(
    name: str, outcomes: Mapping[str, Outcome], entries: list[Entry], *, ours: bool
) -> Comparison:
    """Hold the outcomes of the file `name` against the entries for it."""
    these = [entry for entry in entries if entry.is_for(name, ours=ours)]
    found = Comparison()
    for test, outcome in sorted(outcomes.items()):
        reason = next((entry.reason for entry in these if entry.means(test)), None)
        if outcome.outcome == "skipped":
            found.skipped += 1
        elif outcome.outcome == "passed":
            found.passed += 1
            if reason is not None:
                found.unexpected_passes.append(test)
        elif reason is None:
            found.unexpected_failures.append(test)
        else:
            found.known.setdefault(reason, []).append(test)
    return found


def left_out(name: str, entries: list[Entry], *, ours: bool) -> list[str]:
    """The patterns of the tests of the file `name` that are not run."""
    return [
        pattern
        for entry in entries
        if entry.is_for(name, ours=ours) and not entry.run
        for pattern in entry.tests
    ]
