"""What a fuzzing run counts, in a form that processes write to files and a report adds up.

Each worker process rewrites one JSON file of its own, whole and by rename, so that a reader (the
progress bar, the report after Ctrl-C) never sees half of one.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

SLOWEST = 10


class Tally:
    """Counts of examples, combinations, errors and failures, of one process or of many."""

    def __init__(self) -> None:
        self.examples: Counter[str] = Counter()
        """Executed examples by property."""
        self.tried: Counter[tuple[int, int]] = Counter()
        """Examples by (batch, devices)."""
        self.failed: Counter[tuple[int, int]] = Counter()
        """Those of them that failed, the steps of shrinking included."""
        self.worst: dict[str, float] = {}
        """The largest error relative to its bound, by property."""
        self.slowest: list[dict[str, Any]] = []
        """Seconds, property, batch and devices of the slowest examples, slowest first."""
        self.failures: dict[str, dict[str, Any]] = {}
        """The smallest failing example of each kind, by property and place."""

    def add_slow(self, entry: dict[str, Any]) -> None:
        if len(self.slowest) == SLOWEST and entry["seconds"] <= self.slowest[-1]["seconds"]:
            return
        rest = [old for old in self.slowest if old["property"] != entry["property"]]
        same = [old for old in self.slowest if old["property"] == entry["property"]]
        best = max([*same, entry], key=lambda one: one["seconds"])
        self.slowest = sorted([*rest, best], key=lambda one: -one["seconds"])[:SLOWEST]

    def add(self, other: Tally) -> None:
        """Take in what another process counted."""
        self.examples += other.examples
        self.tried += other.tried
        self.failed += other.failed
        for name, error in other.worst.items():
            self.worst[name] = max(error, self.worst.get(name, 0.0))
        for entry in other.slowest:
            self.add_slow(entry)
        for key, failure in other.failures.items():
            known = self.failures.get(key)
            if known is None or len(failure["example"]) < len(known["example"]):
                self.failures[key] = failure

    def plain(self) -> dict[str, Any]:
        """Return the tally as JSON has it."""
        return {
            "examples": dict(sorted(self.examples.items())),
            "combinations": [
                {"batch": b, "devices": n, "tried": count, "failed": self.failed[b, n]}
                for (b, n), count in sorted(self.tried.items())
            ],
            "worst_errors": dict(sorted(self.worst.items(), key=lambda item: -item[1])),
            "slowest": self.slowest,
            "failures": self.failures,
        }

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Tally:
        tally = Tally()
        tally.examples.update(plain["examples"])
        for entry in plain["combinations"]:
            place = entry["batch"], entry["devices"]
            tally.tried[place] = entry["tried"]
            tally.failed[place] = entry["failed"]
        tally.worst = dict(plain["worst_errors"])
        tally.slowest = list(plain["slowest"])
        tally.failures = dict(plain["failures"])
        return tally

    def save(self, path: Path) -> None:
        """Write the tally whole, or leave the former one."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(self.plain()))
        os.replace(draft, path)


def sum_tallies(folder: Path) -> Tally:
    """Return the sum of what every process of a run has written to `folder`."""
    total = Tally()
    for path in sorted(folder.glob("*.tally.json")):
        total.add(Tally.from_plain(json.loads(path.read_text())))
    return total
