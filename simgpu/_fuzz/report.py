"""The report of a fuzzing run: one HTML page that needs no network, and the same as JSON.

The page is the template `templates/report.html.jinja`; here is what the template is given.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from simgpu._fuzz.sessions import range_text
from simgpu._fuzz.tally import Failure, Tally
from simgpu._util.naming import plural

WIDEST = 64
"""The largest batch with a column of its own; one more column is for all larger ones."""


@dataclass(frozen=True)
class Cell:
    """One batch on one number of devices."""

    batch: str
    devices: int
    examples: int
    failed: int
    depth: float
    """How dark the cell is: 0 for one example, 1 for as many as any cell has."""


def heat_map(tally: Tally, low: int, high: int) -> dict[int, list[Cell]]:
    """Return the cells of each row of the map, by the number of devices."""
    most = max(tally.combinations.values(), default=1)

    def cell(batch: str, n: int, examples: int, failed: int) -> Cell:
        depth = math.log(max(examples, 1)) / math.log(max(most, 2))
        return Cell(batch, n, examples, failed, min(1.0, round(depth, 2)))

    rows = {}
    for n in range(low, high + 1):
        tried, failed = tally.combinations, tally.failed
        cells = [cell(str(b), n, tried[b, n], failed[b, n]) for b in range(WIDEST + 1)]
        larger = [(b, n) for b, devices in tried if devices == n and b > WIDEST]
        sums = (sum(map(counts.__getitem__, larger)) for counts in (tried, failed))
        rows[n] = [*cells, cell(f"over {WIDEST}", n, *sums)]
    return rows


def never_tried(tally: Tally, low: int, high: int) -> dict[int, list[int]] | None:
    """Return the batches from 0 to 64 that no example had, for low to high devices.

    None where no example recorded its batch.
    """
    if not tally.combinations:
        return None
    return {
        n: [batch for batch in range(WIDEST + 1) if not tally.combinations[batch, n]]
        for n in range(low, high + 1)
    }


def replay_command(failure: Failure, run: dict[str, Any]) -> str:
    """Return the command that runs one failing example again."""
    words = ["python", "-m", "simgpu", "replay", failure.property]
    words += [failure.blob] if failure.blob else ["--database", run["database"]]
    words += [f"--{name}" for name in ("as-cuda", "schedules") if run.get(name.replace("-", "_"))]
    words += ["--devices", range_text(run["devices"])]
    if run.get("ranks", [1, 8]) != [1, 8]:
        words += ["--ranks", range_text(run["ranks"])]
    return shlex.join(words)


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text, neighbours joined: 0-3, 7, 9-12."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def as_json(tally: Tally, run: dict[str, Any]) -> dict[str, Any]:
    """Return the report for machines."""
    plain = tally.plain()
    plain["failures"] = [
        {**asdict(failure), "command": replay_command(failure, run)}
        for failure in sorted(tally.failures.values(), key=lambda one: one.property)
    ]
    gaps = never_tried(tally, *run["devices"])
    return {
        "run": run,
        "total_examples": tally.examples.total(),
        "never_tried": gaps and {str(n): batches for n, batches in gaps.items()},
        **plain,
    }


def first_line(text: str) -> str:
    """Return what a folded text shows."""
    return shortened(text.strip().partition("\n")[0], 150)


def shortened(line: str, most: int) -> str:
    """Return a line, or its first `most` characters."""
    return line if len(line) <= most else line[:most] + "\N{HORIZONTAL ELLIPSIS}"


def beginning(message: str) -> str:
    """Return what the command line shows of the text of an error: its first two lines."""
    lines = [line for line in message.splitlines() if line.strip()]
    return shortened(" ".join(lines[:2]) or "(no message)", 300)


def as_html(tally: Tally, run: dict[str, Any]) -> str:
    """Return the report for people."""
    templates = Environment(
        loader=PackageLoader("simgpu._fuzz"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"plural": plural, "ranges": ranges, "first_line": first_line}
    low, high = run["devices"]
    return templates.get_template("report.html.jinja").render(
        run=run,
        tally=tally,
        low=low,
        high=high,
        widest=WIDEST,
        failures=as_json(tally, run)["failures"],
        map=heat_map(tally, low, high),
        gaps=never_tried(tally, low, high),
    )


def write(tally: Tally, run: dict[str, Any], path: Path) -> None:
    """Write the report to `path` and its twin beside it, with the ending .json."""
    twin = json.dumps(as_json(tally, run), indent=1, ensure_ascii=False) + "\n"
    for file, text in ((path, as_html(tally, run)), (path.with_suffix(".json"), twin)):
        # A message may have half of a pair of surrogates: "\udcff", as JSON reads it again.
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
