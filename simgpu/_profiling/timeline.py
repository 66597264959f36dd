"""Write the timeline of `simgpu run --trace FILE`, and join those of several ranks.

A process that torchrun has started is one rank of several. Each writes a part beside the file, and
the rank that finds all parts joins them: a device of a rank is a row of its own, and all have one
clock, that of the machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Which rank this process is, where a launcher such as torchrun has started several.


def rank_and_count(environment: Mapping[str, str]) -> tuple[int, int]:
    """The rank and the number of ranks by this environment; 0 and 1 for a single process.

    A launcher sets RANK and WORLD_SIZE. Where these are not a number and a larger one, no
    launcher has set them.
    """
    texts = environment.get("RANK") or "0", environment.get("WORLD_SIZE") or "1"
    if not all(text.isdecimal() for text in texts):
        return 0, 1
    rank, count = map(int, texts)
    return (rank, count) if rank < count else (0, 1)


def heading(environment: Mapping[str, str]) -> str:
    """The line that names the rank of the table below; empty for a single process."""
    rank, count = rank_and_count(environment)
    return f"rank {rank} of {count}\n" if count > 1 else ""


_ROWS = 1000  # how far apart the numbers of two ranks' rows are


def write(path: str, timeline: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Write a timeline to `path`, together with those of the other ranks where there are any.

    `environment` gives the rank: the one with which the process has begun.
    """
    rank, count = rank_and_count(environment)
    if count == 1:
        _dump(Path(path), timeline)
        return
    parts = [Path(f"{path}.{_this_run(environment)}rank{each}") for each in range(count)]
    _dump(parts[rank], timeline)
    if all(part.exists() for part in parts):
        try:
            read = [json.loads(part.read_text(encoding="utf-8")) for part in parts]
        except FileNotFoundError:  # another rank was here first
            return
        _dump(Path(path), together(read))
        for part in parts:
            part.unlink(missing_ok=True)


def _this_run(environment: Mapping[str, str]) -> str:
    """Distinguishes the parts of this start from those that an earlier start has left."""
    parts = [environment.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT")]
    return "".join(f"{''.join(filter(str.isalnum, each))}." for each in parts if each)


def together(timelines: list[dict[str, Any]]) -> dict[str, Any]:
    """One timeline of those of all ranks, with the times since the first launch of any."""
    starts = [timeline["otherData"]["start"] for timeline in timelines]
    first = min((start for start in starts if start), default=0.0)
    events: list[dict[str, Any]] = []
    for rank, (timeline, start) in enumerate(zip(timelines, starts, strict=True)):
        for event in timeline["traceEvents"]:
            event["pid"] += rank * _ROWS
            if "ts" in event:
                event["ts"] += (start - first) * 1e6
            if "id" in event:
                event["id"] = f"{rank}:{event['id']}"
            if event["name"] == "process_name":
                event["args"]["name"] = f"rank {rank}, {event['args']['name']}"
            events.append(event)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"start": first}}


def _dump(path: Path, timeline: dict[str, Any]) -> None:
    """Write a file that is there as a whole, or not at all."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(timeline), encoding="utf-8")
    unfinished.replace(path)
