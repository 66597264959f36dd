"""The report "simulated against hardware": what recordings say, and what simulated devices do.

`python -m tests.support.comparison FILES` prints it, and so does a session of pytest that replays
them; docs/fidelity.md shows the current one.
"""

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import simgpu
from tests.support import published
from tests.support.observe import observe
from tests.support.recording import FOLDER, RecordingError, devices_for, differences, load

HEAD = ("recording", "GPU", "torch", "cases", "numbers", "agreed", "differ", "not compared")


@dataclass
class Row:
    """One recording, and what became of its cases."""

    name: str
    gpu: str
    torch: str
    cases: int
    numbers: int
    agreed: int
    not_compared: int = 0
    reasons: Counter = field(default_factory=Counter)
    """Why cases differ, or are not compared."""
    wrong: list = field(default_factory=list)
    """Differences without a reason."""

    @property
    def cells(self):
        differ = self.cases - self.agreed - self.not_compared
        counts = (self.cases, self.numbers, self.agreed, differ, self.not_compared)
        return (self.name, self.gpu, self.torch, *map(str, counts))

    def as_json(self):
        """As a text from which `row_of_json` makes it again."""
        return json.dumps(vars(self), default=str)


def row_of_json(text):
    reported = json.loads(text)
    return Row(**{**reported, "reasons": Counter(reported["reasons"])})


def files():
    """All recordings of this repository."""
    return [*sorted(FOLDER.glob("*.json")), *sorted(published.PUBLISHED.glob("*.json"))]


def compare(path):
    """Replay one recording of either kind on simulated devices, and return its row.

    Raises RecordingError where the file is none.
    """
    path = Path(path)
    try:
        recording = published.load(path)
    except published.AnotherFile:
        recording = load(path)
        with simgpu.devices(8) as devices:
            return row_of_recording(path.stem, recording, devices)
    return row_of_published(path.stem, recording, published.replay(recording))


def row_of_recording(name, recording, devices):
    devices = devices_for(recording, devices)
    found = differences(recording, lambda case: observe(case, devices), devices)
    origin, cases = recording["origin"], recording["cases"]
    return Row(
        name=name,
        gpu=origin.get("gpu") or "several",
        torch=origin.get("torch") or "not named",
        cases=len(cases),
        numbers=sum(published.numbers(entry["seen"]) for entry in cases),
        agreed=len(cases) - len({repr(one[0]) for one in found}),
        reasons=Counter(one[4] for one in found if one[4] is not None),
        wrong=[one for one in found if one[4] is None],
    )


def row_of_published(name, recording, outcomes):
    cases = recording["cases"]
    models = list(dict.fromkeys(str(case.get("model", "any")) for case in cases))
    versions = {v for case in cases for v in re.findall(r"torch (\d+\.\d+)", case["source"])}
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    return Row(
        name=name,
        gpu=models[0] if len(models) == 1 else "several",
        torch=", ".join(sorted(versions, key=lambda v: tuple(map(int, v.split("."))))) or "several",
        cases=len(cases),
        numbers=sum(published.numbers(case["seen"]) for case in cases),
        agreed=verdicts["agreed"],
        not_compared=verdicts["not compared"],
        reasons=Counter(o.why for o in outcomes if o.why and not o.is_wrong),
        wrong=[(o.case["source"], o.why) for o in outcomes if o.is_wrong],
    )


def table(rows):
    """The rows as a Markdown table with a sum below, and the reasons."""
    rows = list(rows)
    sums = [sum(int(row.cells[k]) for row in rows) for k in range(3, len(HEAD))]
    lines = [HEAD, ["---"] * len(HEAD), *(row.cells for row in rows), ("all", "", "", *sums)]
    text = "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)
    reasons = [f"- {row.name}: {why} ({n})\n" for row in rows for why, n in row.reasons.items()]
    return (
        text
        + ("\nDifferences, and what is not compared:\n\n" if reasons else "")
        + "".join(reasons)
    )


def main(paths):
    """Print the report on some files; returns 1 where something differs without a reason."""
    try:
        rows = [compare(path) for path in paths]
    except (OSError, ValueError, RecordingError) as error:
        sys.exit(f"python -m tests.support.comparison: {error}")
    print(f"simulated against hardware\n\n{table(rows)}", end="")
    for row in rows:
        for what in row.wrong:
            print(f"WITHOUT A REASON, {row.name}: {what}")
    return int(any(row.wrong for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
