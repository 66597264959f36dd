"""`expected.toml`: which of PyTorch's tests fail on simulated devices, and why."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.upstream.processes import Outcome

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
    data_parallel: str = "both"  # with whose: "pytorch", "ours" or "both"


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


def read(path: Path = FILE) -> list[Entry]:
    """The entries of a table.

    Raises:
        ValueError: an entry lacks something, or says something that has no meaning here.
    """
    entries = []
    for table in tomllib.loads(path.read_text(encoding="utf-8")).get("expected", []):
        unknown = set(table) - {"file", "reason", "tests", "data_parallel"}
        if unknown or not all(table.get(name) for name in ("file", "reason", "tests")):
            raise ValueError(f"{path}: an entry needs file, reason and tests, got {table}")
        entry = Entry(**{**table, "tests": tuple(table["tests"])})
        if entry.data_parallel not in ("both", "ours", "pytorch"):
            raise ValueError(f"{path}: data_parallel must be both, ours or pytorch: {entry}")
        entries.append(entry)
    return entries


def compare(
    name: str, outcomes: Mapping[str, Outcome], entries: list[Entry], *, ours: bool
) -> Comparison:
    """Hold the outcomes of the file `name` against the entries for it."""
    these = ("both", "ours" if ours else "pytorch")
    reasons = {
        pattern: entry.reason
        for entry in entries
        if entry.file == name and entry.data_parallel in these
        for pattern in entry.tests
    }
    found = Comparison()
    for test, outcome in sorted(outcomes.items()):
        reason = next((why for p, why in reasons.items() if fnmatch.fnmatchcase(test, p)), None)
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
