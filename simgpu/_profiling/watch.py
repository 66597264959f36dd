"""What a run looked like: a timeline for Perfetto or Chrome, and a table per device.

The times are those of the host, which does one thing after the other: they show order, streams and
sizes, never how long a GPU would take or what it would do at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TextIO

from simgpu._cuda import renaming
from simgpu._naming import DEVICE_TYPE
from simgpu._profiling.module_inputs import Inputs
from simgpu._profiling.timeline import Timeline
from simgpu._profiling.totals import Totals
from simgpu._runtime import launch, world


@contextmanager
def watch(path: str | None, table: TextIO | None) -> Iterator[None]:
    """Watch the devices within the block; then write the timeline, the table, or both.

    They are written also where the block ends in an error, and before it goes on.
    """
    timeline, totals, inputs = Timeline(), Totals(), Inputs()
    observers = [timeline.add] * (path is not None) + [totals.add] * (table is not None)
    names = [_name(index) for index in range(world.device_count())]
    for observer in observers:
        launch.add_observer(observer)
    try:
        with inputs.watched() if table is not None else nullcontext():
            yield
    finally:
        for observer in observers:
            launch.remove_observer(observer)
        if path is not None:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(timeline.as_json(names), file)
        if table is not None:
            table.write(totals.as_text(names, inputs))


def _name(index: int) -> str:
    return f"{renaming.CUDA if renaming.is_on() else DEVICE_TYPE}:{index}"
