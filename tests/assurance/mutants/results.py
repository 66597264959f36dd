"""What became of each mutant, and the score of each folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.assurance.mutants.child import Verdict
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
