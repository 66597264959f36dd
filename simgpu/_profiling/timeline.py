"""The timeline of `simgpu run --trace FILE`: kernels and copies in the Chrome trace format.

A process that torchrun has started is one rank of several. Each writes a part beside the file, and
the rank that finds all parts joins them: a device of a rank is a row of its own, and all have one
clock, that of the machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from simgpu._core.hooks import Collective, Instrument, Launch, Record

_HOST = -1


def index_of(device: torch.device) -> int:
    """The device's index, -1 for the host."""
    return _HOST if device.type == "cpu" else device.index


class Timeline(Instrument):
    """Collects what ran, and writes it in the Trace Event Format that Perfetto and Chrome read.

    A process of the format is a device (process 0 the host), a thread of it a stream.
    """

    def __init__(self) -> None:
        # Compact, and appending is atomic: records come from any thread.
        self._seen: list[tuple[Any, ...]] = []

    def after_launch(self, launch: Launch, record: Record) -> None:
        source, target = index_of(record.source), index_of(record.target)
        row = (record.op, index_of(record.device), record.stream, source, target)
        sizes = record.nbytes, record.allocated
        self._seen.append((*row, record.begin, record.end, *sizes, record.collective, record.kind))

    def as_json(self, names: list[str]) -> dict[str, Any]:
        """The whole file, with times in microseconds since the first launch."""
        events: list[dict[str, Any]] = []
        rows: set[tuple[int, int]] = set()
        start = min((seen[5] for seen in self._seen), default=0.0)
        for number, seen in enumerate(self._seen):
            *place, begin, end, nbytes, allocated, collective, kind = seen
            op, device, stream, source, target = place
            at = (begin - start) * 1e6
            took = max((end - begin) * 1e6, 0.001)
            what = {"name": op, "ph": "X", "ts": at, "dur": took}
            row = (device + 1, stream)
            if source == target:
                rows.add(row)
                about = {"bytes": nbytes} if collective is None else _of_call(collective)
                kind = kind if collective is None else "collective"
                events.append({**what, "cat": kind, **_on(row), "args": about})
            else:
                other = ((target if device == source else source) + 1, 0)
                rows |= {row, other}
                from_, to = (row, other) if device == source else (other, row)
                between = {"from": _named(source, names), "to": _named(target, names)}
                events += _copy(what, from_, to, {"bytes": nbytes, **between}, number)
            counter = {"name": "memory", "ph": "C", "ts": at + took, "pid": device + 1}
            events.append({**counter, "args": {"bytes": allocated}})
        return {
            "traceEvents": _titles(rows, names) + events,
            "displayTimeUnit": "ms",
            "otherData": {"start": start},
        }


def _copy(
    what: dict[str, Any],
    from_: tuple[int, int],
    to: tuple[int, int],
    moved: dict[str, Any],
    number: int,
) -> Iterator[dict[str, Any]]:
    """A copy: a bar on both sides, and an arrow from one to the other."""
    for side in (from_, to):
        yield {**what, "cat": "copy", **_on(side), "args": moved}
    arrow = {"name": "copy", "cat": "copy", "id": number, "ts": what["ts"]}
    yield {**arrow, "ph": "s", **_on(from_)}
    yield {**arrow, "ph": "f", "bp": "e", **_on(to)}


def _of_call(collective: Collective) -> dict[str, Any]:
    """The arguments of a collective: the root of a broadcast, which writes nothing, sends bytes."""
    about = dataclasses.asdict(collective)
    return {"bytes": about.pop("nbytes"), **about}


def _on(row: tuple[int, int]) -> dict[str, int]:
    """The keys that put an event into a row of the timeline."""
    return {"pid": row[0], "tid": row[1]}


def _titles(rows: set[tuple[int, int]], names: list[str]) -> list[dict[str, Any]]:
    """The names of devices and streams."""
    processes = sorted({pid for pid, _ in rows})
    titles = [_title("process_name", (pid, 0), _named(pid - 1, names)) for pid in processes]
    return titles + [_title("thread_name", row, f"stream {row[1]}") for row in sorted(rows)]


def _title(kind: str, row: tuple[int, int], name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", **_on(row), "args": {"name": name}}


def _named(index: int, names: list[str]) -> str:
    return "host" if index == _HOST else names[index]


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
