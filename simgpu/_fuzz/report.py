"""The report of a fuzzing run: one HTML page that needs no network, and its JSON twin.

The page is the template `templates/report.html.jinja`; here is what the template is given.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from simgpu._counting import plural
from simgpu._fuzz.heat_map import WIDEST, heat_map, never_tried
from simgpu._fuzz.tally import Failure, Tally


def replay_command(failure: Failure, run: dict[str, Any]) -> str:
    """Return the command that runs one failing example again."""
    low, high = run["devices"]
    words = ["python", "-m", "simgpu", "replay", failure.property]
    words += [failure.blob] if failure.blob else ["--database", run["database"]]
    words += ["--schedules"] if run.get("schedules") else []
    words += ["--devices", f"{low}..{high}"]
    if run.get("ranks", [1, 8]) != [1, 8]:
        words += ["--ranks", "{}..{}".format(*run["ranks"])]
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
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 150 else line[:150] + "\N{HORIZONTAL ELLIPSIS}"


def as_html(tally: Tally, run: dict[str, Any]) -> str:
    """Return the report for people."""
    loader = PackageLoader("simgpu._fuzz")
    templates = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["plural"] = plural
    templates.filters["ranges"] = ranges
    templates.filters["first_line"] = first_line
    low, high = run["devices"]
    gaps = never_tried(tally, low, high)
    return templates.get_template("report.html.jinja").render(
        run=run,
        low=low,
        high=high,
        widest=WIDEST,
        failures=as_json(tally, run)["failures"],
        total=tally.examples.total(),
        scheduled=tally.switches.total(),
        switched=tally.switches.total() - tally.switches[0],
        most_switches=max(tally.switches, default=0),
        examples=tally.examples.most_common(),
        properties=tally.properties,
        finished=len(tally.finished),
        combinations=len(tally.combinations),
        map=heat_map(tally, low, high),
        most=max(tally.combinations.values(), default=1),
        gaps=gaps,
        missing=sum(map(len, (gaps or {}).values())),
        everything=(WIDEST + 1) * (high - low + 1),
        errors=sorted(tally.worst.items(), key=lambda item: -item[1]),
        slowest=tally.slowest,
    )


def write(tally: Tally, run: dict[str, Any], path: Path) -> None:
    """Write the report to `path` and its twin beside it, with the ending .json."""
    twin = json.dumps(as_json(tally, run), indent=1, ensure_ascii=False) + "\n"
    for file, text in ((path, as_html(tally, run)), (path.with_suffix(".json"), twin)):
        # A message may have half of a pair of surrogates: "\udcff", as JSON reads it again.
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
