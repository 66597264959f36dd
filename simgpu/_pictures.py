"""What a run looked like: a timeline for Perfetto or Chrome, and a table per device.

The times are those of the host, which does one thing after the other: they show order, streams and
sizes, never how long a GPU would take or what it would do at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

import torch

from simgpu import _cuda_names, _launch, _world
from simgpu._inputs import Inputs
from simgpu._launch import Record
from simgpu._memory_functions import format_bytes
from simgpu._relabel import DEVICE_TYPE

_HOST = -1


@contextmanager
def watch(path: str | None, table: TextIO | None) -> Iterator[None]:
    """Watch the devices within the block; then write the timeline, the table, or both.

    They are written also where the block ends in an error, and before it goes on.
    """
    timeline, totals, inputs = Timeline(), Totals(), Inputs()
    observers = [timeline.add] * (path is not None) + [totals.add] * (table is not None)
    names = [_name(index) for index in range(_world.device_count())]
    for observer in observers:
        _launch.add_observer(observer)
    try:
        with inputs.watched() if table is not None else nullcontext():
            yield
    finally:
        for observer in observers:
            _launch.remove_observer(observer)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(timeline.as_json(names), file)
        if table is not None:
            table.write(totals.as_text(names, inputs))


def _name(index: int) -> str:
    return f"{_cuda_names.CUDA if _cuda_names.is_on() else DEVICE_TYPE}:{index}"


def _index(device: torch.device) -> int:
    return _HOST if device.type == "cpu" else device.index


class Timeline:
    """Events in the Trace Event Format: a process per device, a thread per stream."""

    def __init__(self) -> None:
        # Compact, and appending is atomic: records come from any thread.
        self._seen: list[tuple[str, int, int, int, int, float, float, int, int]] = []

    def add(self, record: Record) -> None:
        """See one launch."""
        source, target = _index(record.source), _index(record.target)
        row = (record.op, _index(record.device), record.stream, source, target)
        self._seen.append((*row, record.begin, record.end, record.nbytes, record.allocated))

    def as_json(self, names: list[str]) -> dict[str, Any]:
        """The whole file, with times in microseconds since the first event."""
        events: list[dict[str, Any]] = []
        streams: set[tuple[int, int]] = set()
        start = min((seen[5] for seen in self._seen), default=0.0)
        for number, seen in enumerate(self._seen):
            op, device, stream, source, target, begin, end, nbytes, allocated = seen
            at = (begin - start) * 1e6
            took = max((end - begin) * 1e6, 0.001)
            place = {"pid": device + 1, "tid": stream}
            streams.add((device, stream))
            what = {"name": op, "cat": "kernel", "ph": "X", "ts": at, "dur": took}
            if source == target:
                events.append({**what, **place, "args": {"bytes": nbytes}})
            else:
                other = target if device == source else source
                there = {"pid": other + 1, "tid": 0}
                streams.add((other, 0))
                from_, to = (place, there) if device == source else (there, place)
                moved = {
                    "bytes": nbytes,
                    "from": _named(source, names),
                    "to": _named(target, names),
                }
                arrow = {"name": "copy", "cat": "copy", "id": number}
                for side in (from_, to):
                    events.append({**what, "cat": "copy", **side, "args": moved})
                events.append({**arrow, "ph": "s", "ts": at, **from_})
                events.append({**arrow, "ph": "f", "bp": "e", "ts": at, **to})
            counter = {"name": "memory", "ph": "C", "ts": at + took, "pid": device + 1}
            events.append({**counter, "args": {"bytes": allocated}})
        titles = [
            _title("process_name", pid, 0, _named(pid, names))
            for pid in sorted({pid for pid, _ in streams})
        ]
        titles += [_title("thread_name", pid, tid, f"stream {tid}") for pid, tid in sorted(streams)]
        return {"traceEvents": titles + events, "displayTimeUnit": "ms"}


def _named(index: int, names: list[str]) -> str:
    return "host" if index == _HOST else names[index]


def _title(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid + 1, "tid": tid, "args": {"name": name}}


class Totals:
    """Sums per device."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}  # kernels, bytes in, bytes out, bytes written

    def add(self, record: Record) -> None:
        """See one launch."""
        source, target = _index(record.source), _index(record.target)
        if source == target:
            row = self._row(source)
            row[0] += 1
            row[3] += record.nbytes
            return
        self._row(target)[1] += record.nbytes
        self._row(source)[2] += record.nbytes

    def _row(self, index: int) -> list[int]:
        return self._rows.setdefault(index, [0, 0, 0, 0])

    def as_text(self, names: list[str], inputs: Inputs) -> str:
        """The table, with two shares of each device.

        `work` is of the bytes that kernels wrote, `batch` of the bytes that models were called
        with.
        """
        rows = [self._row(index) for index in range(len(names))]
        written = [row[3] for row in rows]
        given = [inputs.nbytes[index] for index in range(len(names))]
        lines = [
            f"{'device':<10}{'kernels':>9}{'in':>13}{'out':>13}{'peak memory':>13}"
            f"{'work':>8}{'batch':>8}"
        ]
        for index, (name, device) in enumerate(zip(names, _world.active, strict=True)):
            kernels, received, sent, _ = rows[index]
            amounts = [format_bytes(amount) for amount in (received, sent, device.peak)]
            cells = "".join(f"{amount:>13}" for amount in amounts)
            shares = f"{_share(written, index):>8}{_share(given, index):>8}"
            lines.append(f"{name:<10}{kernels:>9}{cells}{shares}")
        return "\n".join(lines) + "\n"


def _share(amounts: list[int], index: int) -> str:
    return f"{amounts[index] / sum(amounts):.1%}" if any(amounts) else "-"
