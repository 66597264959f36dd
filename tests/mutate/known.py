"""Mutants that a test is known to kill: whether it still does takes that one test to say.

`killed.jsonl` holds them, one in a line, with their test. A run over all tests that might notice a
mutant depends on how much time they get; this one does not, so a busy machine finds the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutate.child import Verdict
from tests.mutate.mutants import Mutant
from tests.mutate.results import KILLED, Result

TABLE = Path(__file__).with_name("killed.jsonl")

Ask = Callable[[Mutant, str], Verdict]


def read(path: Path = TABLE) -> dict[str, str]:
    """The test that kills each mutant, by the mutant's identity."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["mutant"]: row["test"] for row in rows}


def write(results: Sequence[Result], limit: int, path: Path = TABLE) -> int:
    """Keep the first `limit` kills by a test that failed; returns how many there were."""
    kills = [it for it in results if it.verdict.status == "killed" and it.verdict.test][:limit]
    kills.sort(key=lambda it: (it.mutant.path, it.mutant.line, it.mutant.identity))
    lines = [
        json.dumps({"mutant": it.mutant.identity, "file": it.mutant.path, "test": it.verdict.test})
        for it in kills
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)


@dataclass
class Again:
    """The known mutants tried again; `ask` lets one test judge a mutant."""

    ask: Ask
    tests: frozenset[str]
    known: dict[str, str] = field(default_factory=read)

    def fitting(self, mutants: Sequence[Mutant]) -> list[Mutant]:
        """Those whose line and test are there as they were."""
        return [it for it in mutants if self.known.get(it.identity) in self.tests]

    def run(self, mutant: Mutant) -> tuple[Mutant, Verdict]:
        return mutant, self.ask(mutant, self.known[mutant.identity])


def report(found: Sequence[tuple[Mutant, Verdict]], known: int) -> list[str]:
    """What survived, and the figures."""
    lines = []
    for mutant, verdict in found:
        if verdict.status not in KILLED:
            where = f"{mutant.path}:{mutant.line} in {mutant.scope or 'the module'}"
            lines += [f"{verdict.status}: {where} ({mutant.operator})", mutant.diff()]
    killed = len(found) - len(lines) // 2
    lines.append(f"{killed} of {len(found)} mutants killed again; {known} are known")
    return lines
