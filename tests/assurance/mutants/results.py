"""What became of each mutant: kept between runs, and reported at the end as a score."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.assurance.mutants.child import Verdict
from tests.assurance.mutants.covering import KEPT, digest
from tests.assurance.mutants.mutants import Mutant

KILLED = ("killed", "timeout", "crashed")


@dataclass(frozen=True)
class Result:
    """What the tests found of a mutant; the budget is what they were allowed to cost together."""

    mutant: Mutant
    verdict: Verdict
    tests: int
    """How many tests run its line, or what else `place` says."""
    chosen: int
    """How many of them were to be run."""
    place: str
    """Its "line"; where no test runs that, its "function"; where none runs that, its "file"."""

    @property
    def killed(self) -> bool:
        return self.verdict.status in KILLED


class Kept:
    """Results of earlier runs, by mutant and by what they depend on.

    A kill holds until the file changes, or that of the test which killed. Tests that a mutant has
    survived are not asked again until the one or the other changes: with more time, or with a new
    test, only the others are.
    """

    def __init__(self, package: str) -> None:
        self.path = KEPT / f"results-{package}.jsonl"
        self.lock = threading.Lock()
        self.known: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                entry = json.loads(line)
                self.known[entry["mutant"]] = entry

    def find(self, mutant: Mutant) -> Verdict | None:
        """The verdict, if it is a kill that holds."""
        entry = self._entry(mutant)
        verdict = Verdict(**entry["verdict"]) if entry else Verdict("survived")
        if verdict.status not in KILLED:
            return None
        try:
            same = entry["test"] == _stamp(verdict.test)
        except FileNotFoundError:  # the test that killed it is gone
            return None
        return verdict if same else None

    def survived(self, mutant: Mutant) -> bool:
        """Whether an earlier run has tried it, and no test has noticed."""
        return bool(self._entry(mutant)) and self.find(mutant) is None

    def untried(self, mutant: Mutant, tests: Sequence[str]) -> list[str]:
        """Those of the tests that the mutant has not yet survived."""
        survived = set(self._entry(mutant).get("survived", ()))
        return [test for test in tests if _stamp(test) not in survived]

    def _entry(self, mutant: Mutant) -> dict[str, Any]:
        entry = self.known.get(mutant.identity, {})
        return entry if entry.get("file") == digest(mutant.path) else {}

    def add(self, mutant: Mutant, verdict: Verdict, tests: Sequence[str]) -> None:
        """Keep what became of a mutant that these tests have tried."""
        entry = {
            "mutant": mutant.identity,
            "file": digest(mutant.path),
            "verdict": vars(verdict),
        }
        if verdict.status in KILLED:
            entry["test"] = _stamp(verdict.test)
        else:
            before = self._entry(mutant).get("survived", ())
            entry["survived"] = sorted({*before, *map(_stamp, tests)})
        with self.lock, self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def _stamp(test: str) -> str:
    """A short name of a test as it is now; "" for none."""
    if not test:
        return ""
    return hashlib.sha256(f"{test} {digest(test.split('::')[0])}".encode()).hexdigest()[:12]


def report(results: Sequence[Result]) -> list[str]:
    """The lines of the report: survivors with their line and change, and a score per folder."""
    lines = []
    for it in results:
        if it.killed:
            continue
        mutant = it.mutant
        ran = (
            f"{it.chosen} of {it.tests} tests of its {it.place}" if it.tests else "no test runs it"
        )
        where = f"{mutant.path}:{mutant.line} in {mutant.scope or 'the module'}"
        lines += [f"survived: {where} ({mutant.operator}; {ran})", mutant.diff()]
    by_folder: dict[str, list[Result]] = {}
    for it in results:
        by_folder.setdefault(it.mutant.path.rpartition("/")[0], []).append(it)
    return [*lines, *(_score(*each) for each in sorted(by_folder.items())), _score("all", results)]


def _score(name: str, results: Sequence[Result]) -> str:
    statuses = Counter(it.verdict.status for it in results if it.killed)
    how = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    killed = f"{sum(statuses.values())} of {len(results)} mutants killed"
    share = 100 * sum(statuses.values()) / (len(results) or 1)
    return f"{name}: {killed}: {share:.1f} % ({how or 'none'})"
