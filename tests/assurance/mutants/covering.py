"""Which tests are run for a mutant: those that run its line, in an order that finds a kill soon.

What the tests run is measured once, by file of tests, and kept in a folder that git ignores, by
the hash of the package, of the helpers of the tests, and of the file itself.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.assurance.mutants.mutants import ROOT, Mutant
from tests.assurance.mutants.packages import Package

KEPT = ROOT / ".mutation"
SHARED = (
    "conftest.py",
    "tests/conftest.py",
    "tests/support",
    "tests/assurance/mutants/measuring.py",
)


@cache
def digest(*paths: str) -> str:
    """A hash of the files, and of the files of Python in the folders."""
    summary = hashlib.sha256()
    for path in paths:
        here = ROOT / path
        for file in sorted(here.rglob("*.py")) if here.is_dir() else [here]:
            summary.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return summary.hexdigest()[:16]


@dataclass
class Map:
    """What each test costs, in seconds, and the lines that it runs, as bits by file."""

    costs: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """File, test, bits."""
    failed: set[str] = field(default_factory=set)
    imported: dict[str, int] = field(default_factory=dict)

    def add(self, measured: dict[str, Any]) -> None:
        self.failed.update(measured["failed"])
        for test, seen in measured["tests"].items():
            self.costs[test] = seen["cost"]
            for file, bits in seen["lines"].items():
                self.lines[file][test] = int(bits, 16)

    def runs_at_import(self, mutant: Mutant) -> bool:
        """Whether its statement runs when the module is imported, maybe among others."""
        bits = self.imported.get(mutant.path, 0)
        return mutant.defining or bool(bits & _span(*mutant.lines))

    def covering(self, mutant: Mutant) -> tuple[list[str], str]:
        """The tests that run its line; where no test is seen there, its function; else its file.

        Code that runs at import has no line in a test: the tests of its function stand in for it.

        Returns:
            The tests in their order, and which of the three they run.
        """
        here = self.lines.get(mutant.path, {})
        places = {"line": mutant.lines, "function": mutant.around, "file": (1, 1 << 16)}
        for place, (first, last) in places.items():
            span = _span(first, min(last, 1 << 16))
            tests = [test for test, bits in here.items() if bits & span]
            if tests and not (mutant.defining and place == "line"):
                function = _span(mutant.around[0], min(mutant.around[1], 1 << 16))
                ways = {test: here[test] & function for test in tests}
                return self.in_order(tests, ways), place
        return [], "file"

    def in_order(self, tests: Iterable[str], ways: Mapping[str, int]) -> list[str]:
        """The quickest test of each way through the function, then the next quickest of each.

        Tests that take the same way see much the same, and many quick ones only see an error.
        """
        by_way: dict[tuple[int, str], list[str]] = {}
        for test in sorted(tests, key=lambda test: (self.costs[test], test)):
            by_way.setdefault((ways[test], test.split("::")[0]), []).append(test)
        rounds = itertools.zip_longest(*by_way.values())
        return [test for each in rounds for test in each if test is not None]

    def within(self, tests: Sequence[str], budget: float) -> list[str]:
        """Those of the tests, in their order, that fit into `budget` together; at least one."""
        total, kept = 0.0, []
        for test in tests:
            if total + self.costs[test] <= budget:
                total += self.costs[test]
                kept.append(test)
        return kept or list(tests[:1])


def _span(first: int, last: int) -> int:
    return (1 << last + 1) - (1 << first)


Measure = Callable[[list[str]], dict[str, Any]]
"""What a server answers when it is asked to measure these tests."""


def measured_file(
    name: str, tests: list[str], package: Package, measure: Measure
) -> dict[str, Any]:
    """What the tests of a file cost and run in the package: kept from before, or measured now."""
    words = [name, tests, package.folders, package.tier]
    key = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]
    packages = sorted({folder.partition("/")[0] for folder in package.folders})
    stamp = f"{key}-{digest(*packages)}-{digest(*SHARED)}-{digest(name)}"
    kept = KEPT / "map" / f"{stamp}.json.gz"
    if kept.exists():
        return json.loads(gzip.decompress(kept.read_bytes()))  # type: ignore[no-any-return]
    found = measure(tests)
    if "failed" not in found:  # a test ended its process: the others are measured without it
        rest = [test for test in tests if test != found["test"]]
        if len(rest) == len(tests):
            raise RuntimeError(f"the tests of {name} could not be measured: {found['words']}")
        print(f"left out, since it ends its process ({found['words']}): {found['test']}")
        found = measured_file(name, rest, package, measure) if rest else {"tests": {}, "failed": []}
    for stale in kept.parent.glob(f"{key}-*"):
        stale.unlink()
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(gzip.compress(json.dumps(found).encode()))
    return found


def files_of_tests(tests: Iterable[str], at_most: int = 200) -> list[tuple[str, list[str]]]:
    """The tests by their file; a file of very many tests in parts."""
    by_file: dict[str, list[str]] = {}
    for test in tests:
        by_file.setdefault(test.split("::")[0], []).append(test)
    return [
        (name, names[start : start + at_most])
        for name, names in by_file.items()
        for start in range(0, len(names), at_most)
    ]
