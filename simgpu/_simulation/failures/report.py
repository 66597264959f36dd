"""What `simgpu.sweep` returns: what became of the step after each failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Point:
    """One failure, and what the step did about it.

    Attributes:
        number: which allocation, copy or launch failed, from 0.
        place: what it was, and on which device.
        error: name of the exception's type; empty if there was none.
        in_optimizer: whether an optimizer was at work, which leaves some parameters updated.
        changed_buffers: names of the buffers that had been updated by then.
        problems: what is wrong, in words; empty when all is well.
    """

    number: int
    place: str
    error: str
    in_optimizer: bool = False
    changed_buffers: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass
class Report:
    """The failures that were tried; `str(report)` is a table of them."""

    kind: str
    points: Sequence[Point]

    @property
    def count(self) -> int:
        """How many failures were tried."""
        return len(self.points)

    @property
    def problems(self) -> list[str]:
        """One line for each thing that is wrong; empty when all is well."""
        return [
            f"{self.kind} {point.number} ({point.place}): {problem}"
            for point in self.points
            for problem in point.problems
        ]

    def __str__(self) -> str:
        rows = [("", "failed", "raised", "buffers", "problems")]
        for point in self.points:
            raised = point.error + (" in an optimizer" if point.in_optimizer else "")
            buffers = f"{len(point.changed_buffers)} updated" if point.changed_buffers else ""
            problems = "; ".join(point.problems) or "none"
            rows.append((str(point.number), point.place, raised, buffers, problems))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        bad = sum(bool(point.problems) for point in self.points)
        lines.append(f"{self.count} failures tried ({self.kind}), {bad} with problems")
        return "\n".join(lines)
