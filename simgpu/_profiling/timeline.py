"""`--trace`: a timeline of kernels and copies in the Chrome trace format."""

from __future__ import annotations

from typing import Any

import torch

from simgpu._runtime.instruments import Instrument, Launch, Record

_HOST = -1


def index_of(device: torch.device) -> int:
    return _HOST if device.type == "cpu" else device.index


class Timeline(Instrument):
    """Events in the Trace Event Format: a process per device, a thread per stream."""

    def __init__(self) -> None:
        # Compact, and appending is atomic: records come from any thread.
        self._seen: list[tuple[str, int, int, int, int, float, float, int, int]] = []

    def after_launch(self, launch: Launch, record: Record) -> None:
        source, target = index_of(record.source), index_of(record.target)
        row = (record.op, index_of(record.device), record.stream, source, target)
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
