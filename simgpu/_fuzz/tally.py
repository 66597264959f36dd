"""What a fuzzing run counts, in a form that processes write to files and a report adds up.

Each worker process rewrites one file of its own, whole and by rename, so that a reader (the
progress line, the report after Ctrl-C) never sees half of one.
"""

from __future__ import annotations

import os
import pickle
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SLOWEST = 10


@dataclass(frozen=True)
class SlowExample:
    """How long one example took."""

    seconds: float
    property: str
    batch: int | None = None
    devices: int | None = None


@dataclass
class Failure:
    """One failing example of a property."""

    property: str
    """The node id of the test, from the folder of the campaign."""
    error: str
    """The class of the error."""
    message: str
    location: str
    """file:line of the project in which the error arose."""
    combination: tuple[int, int] | None
    """Batch and devices, where the example recorded them (`strategies.tried`)."""
    example: str
    test: str | None
    """The text of a regression test; None where a value cannot be written as source."""
    hypothesis: str
    """The release of hypothesis."""
    blob: str | None = None
    """The code by which hypothesis repeats the example."""
    schedule: str | None = None
    """The token of the order of threads that the example has drawn (`--schedules`)."""
    kind: str = ""
    """What distinguishes it from other failures of the same assertion."""


class Tally:
    """Counts of examples, combinations, errors and failures, of one process or of many."""

    def __init__(self) -> None:
        self.examples: Counter[str] = Counter()
        """Executed examples by property."""
        self.combinations: Counter[tuple[int, int]] = Counter()
        """Examples by combination (batch, devices), where recorded (`strategies.tried`)."""
        self.failed: Counter[tuple[int, int]] = Counter()
        """Those of them that failed, the steps of shrinking included."""
        self.worst: dict[str, float] = {}
        """The largest error relative to its bound, by property."""
        self.slowest: list[SlowExample] = []
        """The slowest example of each property, slowest first."""
        self.failures: dict[str, Failure] = {}
        """The smallest failing example of each kind, by the key of the kind."""
        self.switches: Counter[int] = Counter()
        """Examples by how often threads changed in the schedule that they drew (`--schedules`)."""
        self.properties = 0
        """How many properties there are; 0 until they are collected."""
        self.finished: set[str] = set()
        """Those that were tried to the end."""

    def done(self, examples: int) -> int:
        """Return how many examples are over, where each property tries up to `examples`."""
        running = self.examples.keys() - self.finished
        over = sum(min(self.examples[name], examples) for name in running)
        return over + examples * len(self.finished)

    def add_slow(self, example: SlowExample) -> None:
        """Count one example's time; kept are the slowest, one of each property."""
        if len(self.slowest) == SLOWEST and example.seconds <= self.slowest[-1].seconds:
            return
        every = sorted([*self.slowest, example], key=lambda one: one.seconds)
        slowest = {one.property: one for one in every}  # the last one of each property
        self.slowest = sorted(slowest.values(), key=lambda one: -one.seconds)[:SLOWEST]

    def add(self, other: Tally) -> None:
        """Take in what another process counted."""
        self.examples += other.examples
        self.combinations += other.combinations
        self.failed += other.failed
        self.switches += other.switches
        self.properties = max(self.properties, other.properties)
        self.finished |= other.finished
        for name, error in other.worst.items():
            self.worst[name] = max(error, self.worst.get(name, 0.0))
        for example in other.slowest:
            self.add_slow(example)
        for key, failure in other.failures.items():
            known = self.failures.get(key)
            if known is None or len(failure.example) < len(known.example):
                self.failures[key] = failure

    def plain(self) -> dict[str, Any]:
        """Return the tally as the JSON of a report has it."""
        return {
            "properties": self.properties,
            "finished": sorted(self.finished),
            "examples": dict(sorted(self.examples.items())),
            "combinations": [
                {"batch": b, "devices": n, "examples": count, "failed": self.failed[b, n]}
                for (b, n), count in sorted(self.combinations.items())
            ],
            "switches": {str(count): n for count, n in sorted(self.switches.items())},
            "worst_errors": dict(sorted(self.worst.items(), key=lambda item: -item[1])),
            "slowest": [asdict(example) for example in self.slowest],
            "failures": {key: asdict(failure) for key, failure in self.failures.items()},
        }

    def save(self, path: Path) -> None:
        """Write the tally whole, or leave the former one."""
        draft = path.with_suffix(".draft")
        draft.write_bytes(pickle.dumps(self))
        os.replace(draft, path)


def sum_tallies(folder: Path) -> Tally:
    """Return the sum of what every process of a run has written to `folder`."""
    total = Tally()
    for path in sorted(folder.glob("*.tally")):
        total.add(pickle.loads(path.read_bytes()))
    return total
