"""The report of a fuzzing run: one HTML page that needs no network, and its JSON twin."""

from __future__ import annotations

import html
import json
import math
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from simgpu._fuzz.tally import Failure, Tally

WIDEST = 64
"""The largest batch with a column of its own in the heat map."""

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; padding: 0 1em;
  color: #1b1f24; background: #fff; }
h1 { font-size: 1.5em; margin-bottom: .2em } h2 { font-size: 1.15em; margin-top: 2em }
.facts { color: #57606a } .bad { color: #b3261e; font-weight: 600 } .good { color: #1a7f37 }
table { border-collapse: collapse } td, th { padding: .2em .9em .2em 0; text-align: left }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.map { border-spacing: 1px; border-collapse: separate; table-layout: fixed; width: 100% }
.map td { padding: 0; height: 24px; background: #eef1f4; text-align: center; font-size: 11px }
.map td.never { background: repeating-linear-gradient(45deg, #fff 0 3px, #d0d7de 3px 4px) }
.map td.failed { background: #d1242f; color: #fff; font-weight: 700 }
.map th { padding: 0; font: 11px system-ui, sans-serif; color: #57606a; text-align: center }
.map th.row { width: 5.5em; text-align: left; font-size: 12px }
.key span { display: inline-block; width: 14px; height: 14px; margin: 0 .3em 0 1em;
  vertical-align: -2px; border: 1px solid #d0d7de }
pre { background: #f6f8fa; border: 1px solid #d0d7de; border-radius: 6px; padding: .7em 1em;
  overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 13px }
.failure { border-left: 4px solid #d1242f; padding-left: 1em; margin: 1.2em 0 }
.failure h3 { font-size: 1em; margin: 0; overflow-wrap: anywhere }
"""


def plural(count: int, one: str, many: str = "") -> str:
    """ "1 failure", "2 failures"."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def replay_command(failure: Failure, run: dict[str, Any]) -> str:
    """Return the command that runs one failing example again."""
    low, high = run["devices"]
    words = ["python", "-m", "simgpu", "replay", failure.property]
    words += [failure.blob] if failure.blob else ["--database", run["database"]]
    return shlex.join([*words, "--devices", f"{low}..{high}"])


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as text, neighbours joined: 0-3, 7, 9-12."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def never_tried(tally: Tally, low: int, high: int) -> dict[int, list[int]]:
    """Return the batches from 0 to 64 that no example had, for low to high devices."""
    return {
        n: [batch for batch in range(WIDEST + 1) if not tally.tried[batch, n]]
        for n in range(low, high + 1)
    }


def as_json(tally: Tally, run: dict[str, Any]) -> dict[str, Any]:
    """Return the report for machines."""
    plain = tally.plain()
    failures = [
        {**asdict(failure), "command": replay_command(failure, run)}
        for failure in sorted(tally.failures.values(), key=lambda one: one.property)
    ]
    del plain["failures"]
    return {
        "run": run,
        "total_examples": tally.examples.total(),
        **plain,
        "never_tried": {str(n): gap for n, gap in never_tried(tally, *run["devices"]).items()},
        "failures": failures,
    }


def _cell(batch: str, n: int, tried: int, failed: int, most: int) -> str:
    title = f"batch {batch} on {n} devices: tried {tried}, failed {failed}"
    if failed:
        return f'<td class="failed" title="{title}">&times;</td>'
    if not tried:
        return f'<td class="never" title="batch {batch} on {n} devices: never tried"></td>'
    depth = math.log1p(tried) / math.log1p(most)
    light = 93 - round(58 * depth)
    return f'<td style="background:hsl(212 75% {light}%)" title="{title}"></td>'


def _heat_map(tally: Tally, devices: tuple[int, int]) -> str:
    most = max(tally.tried.values(), default=1)
    rows = []
    for n in range(devices[0], devices[1] + 1):
        cells = [
            _cell(str(b), n, tally.tried[b, n], tally.failed[b, n], most) for b in range(WIDEST + 1)
        ]
        larger = [b for b, count in tally.tried if count == n and b > WIDEST]
        cells.append(
            _cell(
                f"over {WIDEST}",
                n,
                sum(tally.tried[b, n] for b in larger),
                sum(tally.failed[b, n] for b in larger),
                most,
            )
        )
        plural = "device" if n == 1 else "devices"
        rows.append(f'<tr><th class="row">{n} {plural}</th>{"".join(cells)}</tr>')
    heads = "".join(f"<th>{b if b % 4 == 0 else ''}</th>" for b in range(WIDEST + 1))
    return (
        f'<table class="map"><tr><th class="row">batch</th>{heads}<th>&gt;</th></tr>'
        f"{''.join(rows)}</table>"
        '<p class="key facts"><span style="background:hsl(212 75% 90%)"></span>tried once'
        f'<span style="background:hsl(212 75% 35%)"></span>tried {most} time{"s" * (most != 1)}'
        '<span style="background:repeating-linear-gradient(45deg,#fff 0 3px,#d0d7de 3px 4px)">'
        '</span>never tried<span style="background:#d1242f"></span>failed; the last column is '
        f"all batches over {WIDEST}</p>"
    )


def _table(heads: list[str], rows: list[list[Any]], numbers: set[int]) -> str:
    def line(cells: list[Any], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if column in numbers else ''}>{html.escape(str(cell))}</{tag}>"
            for column, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{line(heads, 'th')}</tr>{body}</table>"


def _failure(failure: dict[str, Any]) -> str:
    where = failure["combination"]
    at = f" with a batch of {where[0]} on {where[1]} devices" if where else ""
    test = failure["test"] or (
        "# These values have no source of their own. Put this line above the test:\n"
        f"@reproduce_failure({failure['hypothesis']!r}, b'{failure['blob']}')"
    )
    return (
        f'<div class="failure"><h3>{html.escape(failure["property"])}</h3>'
        f"<p>{html.escape(failure['error'])} at {html.escape(failure['location'])}{at}</p>"
        f"<pre>{html.escape(failure['message'].strip() or '(no message)')}</pre>"
        f"<p>The smallest example:</p><pre>{html.escape(failure['example'])}</pre>"
        f"<p>To see it again:</p><pre>{html.escape(failure['command'])}</pre>"
        f"<p>A regression test:</p><pre>{html.escape(test)}</pre></div>"
    )


def as_html(tally: Tally, run: dict[str, Any]) -> str:
    """Return the report for people."""
    report = as_json(tally, run)
    low, high = run["devices"]
    failures = report["failures"]
    verdict = (
        f'<span class="bad">{plural(len(failures), "failure")}</span>'
        if failures
        else '<span class="good">no failures</span>'
    )
    gaps = {int(n): gap for n, gap in report["never_tried"].items()}
    missing = sum(map(len, gaps.values()))
    everything = (WIDEST + 1) * (high - low + 1)
    untried = _table(["devices", "batches"], [[n, ranges(g)] for n, g in gaps.items() if g], {0})
    errors = [[name, f"{error:.4f}"] for name, error in tally.worst.items()]
    errors.sort(key=lambda row: -float(row[1]))
    none = '<p class="facts">None.</p>'
    worst = _table(["property", "worst"], errors, {1}) if errors else none
    slowest = [
        [
            f"{one.seconds * 1000:.1f}",
            *("" if one_of is None else one_of for one_of in (one.batch, one.devices)),
            one.property,
        ]
        for one in tally.slowest
    ]
    counts = [[count, name] for name, count in tally.examples.most_common()]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Fuzzing report</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body>
<h1>Fuzzing: {verdict}</h1>
<p class="facts">{report["total_examples"]} examples of {len(tally.examples)} properties in
{run["seconds"]:.0f} s ({report["total_examples"] / max(run["seconds"], 1e-9):.0f} per second) in
{plural(run["jobs"], "process", "processes")}, {
        len(tally.tried)
    } combinations of batch and devices. torch {run["torch"]},
hypothesis {run["hypothesis"]}, {html.escape(run["date"])}.</p>
<h2>Failures</h2>{"".join(map(_failure, failures)) or none}
<h2>Batches and devices</h2>{_heat_map(tally, (low, high))}
<h2>Never tried</h2><p class="facts">{missing} of {everything} combinations of 0 to {WIDEST} rows
on {low} to {high} devices.</p>{untried if missing else ""}
<h2>Worst summation error, relative to its bound</h2><p class="facts">1 is just on the bound
&gamma;(n-1)&middot;&Sigma;|g|; more is a failure.</p>{worst}
<h2>Slowest examples</h2>{
        _table(["ms", "batch", "devices", "property"], slowest, {0, 1, 2}) if slowest else none
    }
<h2>Examples by property</h2>{_table(["examples", "property"], counts, {0}) if counts else none}
</body></html>
"""


def write(tally: Tally, run: dict[str, Any], path: Path) -> None:
    """Write the report to `path` and its twin beside it, with the ending .json."""
    path.write_text(as_html(tally, run), encoding="utf-8")
    twin = json.dumps(as_json(tally, run), indent=1, ensure_ascii=False)
    path.with_suffix(".json").write_text(twin + "\n", encoding="utf-8")
