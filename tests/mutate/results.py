"""What became of each mutant: kept between runs, judged by a table, and told at the end."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutate.child import Verdict
from tests.mutate.covering import KEPT, digest
from tests.mutate.mutants import Mutant, mutants_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE = Path(__file__).with_name("equivalent.toml")
KILLED = ("killed", "timeout", "crashed")


@dataclass(frozen=True)
class Result:
    """What the tests said of a mutant; the budget is what they were allowed to cost together."""

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


class Equivalents:
    """The table of mutants that are the same to everyone who calls, each with the reason."""

    def __init__(self, path: Path = TABLE) -> None:
        self.rows = tomllib.loads(path.read_text(encoding="utf-8")).get("equivalent", [])
        self.reasons = {
            (row["file"], row["in"], row["line"], becomes): row["reason"]
            for row in self.rows
            for becomes in ([row["becomes"]] if isinstance(row["becomes"], str) else row["becomes"])
        }

    def reason(self, mutant: Mutant) -> str | None:
        return self.reasons.get(_key(mutant))

    def stale(self) -> list[str]:
        """Rows that fit no mutant: their line has changed."""
        files = {file for file, *_ in self.reasons}
        there = {_key(mutant) for path in files for mutant in mutants_of(path)}
        return [
            f"{file}, in {scope}: {line!r} becoming {becomes!r}"
            for file, scope, line, becomes in self.reasons
            if (file, scope, line, becomes) not in there
        ]


def _key(mutant: Mutant) -> tuple[str, str, str, str]:
    return mutant.path, mutant.scope, squeezed(mutant.before), squeezed(mutant.after)


def squeezed(text: str) -> str:
    """The text with single blanks, so that a table can hold what stands on several lines."""
    return " ".join(text.split())


def report(results: Sequence[Result], others: int = 0) -> list[str]:
    """The lines of the report: survivors with their place and change, and the figures."""
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
    statuses = Counter(it.verdict.status for it in results if it.killed)
    how = ", ".join(f"{count} {name}" for name, count in sorted(statuses.items()))
    lines.append(
        f"{sum(statuses.values())} of {len(results)} mutants killed: {100 * rate(results):.1f} % "
        f"({how or 'none'}); {others} more were left out by equivalent.toml"
    )
    return lines


def rate(results: Sequence[Result]) -> float:
    """The share that is killed."""
    return sum(it.killed for it in results) / len(results) if results else 1.0
