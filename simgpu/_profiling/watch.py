"""The context manager behind `simgpu run --trace` and `--summary`.

The times are those of the host, which does one thing after the other: they show order, streams and
sizes, never how long a GPU would take or what it would do at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TextIO

from simgpu._naming import DEVICE_TYPE, visible_text
from simgpu._profiling.chrome_trace import Timeline
from simgpu._profiling.module_inputs import Inputs
from simgpu._profiling.summary import Totals
from simgpu._runtime import instruments, world


@contextmanager
def watch(path: str | None, table: TextIO | None) -> Iterator[None]:
    """Watch the devices within the block; then write the timeline, the table, or both.

    They are written also where the block ends in an error, and before it goes on.
    """
    timeline, totals, inputs = Timeline(), Totals(), Inputs()
    watching = [*[timeline] * (path is not None), *[totals] * (table is not None)]
    names = [visible_text(f"{DEVICE_TYPE}:{i}") for i in range(world.device_count())]
    for instrument in watching:
        instruments.add(instrument)
    try:
        with inputs.watched() if table is not None else nullcontext():
            yield
    finally:
        for instrument in watching:
            instruments.remove(instrument)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(timeline.as_json(names), file)
        if table is not None:
            table.write(totals.as_text(names, inputs))
