"""Tables of tests that fail here and the reasons; outcomes are compared with them.

A test that is in no entry has to pass, and one that is in an entry has to fail.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Outcome(NamedTuple):
    """What became of a test: "passed", "failed" or "skipped", with a traceback or a reason."""

    outcome: str
    text: str = ""


@dataclass(frozen=True)
class Entry:
    """Tests that fail for one reason: names or patterns of names, with parameters or without."""

    reason: str
    tests: tuple[str, ...]
    but_not: tuple[str, ...] = ()  # tests that match and are none of them
    file: str = ""
    data_parallel: str = "both"  # with whose: "pytorch", "ours" or "both"
    run: bool = True  # False: they are left out
    may_pass: bool = False  # whether they fail depends on the devices or on earlier tests

    def means(self, test: str) -> bool:
        """Whether a test is one of these."""
        return _matches(test, self.tests) and not _matches(test, self.but_not)


@dataclass
class Comparison:
    """What the outcomes are, next to what was expected."""

    passed: int = 0
    skipped: int = 0
    known: dict[str, list[str]] = field(default_factory=dict)  # by reason
    failures: dict[str, str] = field(default_factory=dict)  # unexpected: test -> text
    passes: list[str] = field(default_factory=list)  # unexpected
    broken: str = ""  # why there are no outcomes, or not all of them

    @property
    def as_expected(self) -> bool:
        return not (self.failures or self.passes or self.broken)

    def counts(self) -> str:
        known = sum(map(len, self.known.values()))
        return (
            f"{self.passed} passed, {known} failed as expected, {self.skipped} skipped, "
            f"{len(self.failures)} failed unexpectedly, {len(self.passes)} passed unexpectedly"
        )


def _matches(test: str, patterns: Iterable[str]) -> bool:
    """Within parameters, "*" is all that a pattern may have."""
    base = test.partition("[")[0]
    for pattern in patterns:
        whole = re.escape(pattern).replace(r"\*", ".*")
        if fnmatch.fnmatchcase(base, pattern) or re.fullmatch(whole, test):
            return True
    return False


def read(path: Path) -> list[Entry]:
    """The entries of a table.

    Raises:
        ValueError: an entry lacks something, or says something that has no meaning here.
    """
    entries = []
    for table in tomllib.loads(path.read_text(encoding="utf-8")).get("expected", []):
        unknown = set(table) - set(Entry.__dataclass_fields__)
        if unknown or not table.get("reason") or not table.get("tests"):
            raise ValueError(f"{path}: an entry needs reason and tests, got {table}")
        lists = {name: tuple(table.get(name, ())) for name in ("tests", "but_not")}
        entry = Entry(**{**table, **lists})
        if entry.data_parallel not in ("both", "ours", "pytorch"):
            raise ValueError(f"{path}: data_parallel must be both, ours or pytorch: {entry}")
        if entry.but_not and not entry.run:
            raise ValueError(f"{path}: tests that are left out are told without but_not: {entry}")
        entries.append(entry)
    return entries


def compare(outcomes: Mapping[str, Outcome], entries: Iterable[Entry]) -> Comparison:
    """Hold outcomes against the entries for them."""
    entries, found = list(entries), Comparison()
    for test, (outcome, text) in sorted(outcomes.items()):
        entry = next((entry for entry in entries if entry.means(test)), None)
        if outcome == "skipped":
            found.skipped += 1
        elif outcome == "passed":
            found.passed += 1
            if entry is not None and not entry.may_pass:
                found.passes.append(test)
        elif entry is None:
            found.failures[test] = text
        else:
            found.known.setdefault(entry.reason, []).append(test)
    return found
