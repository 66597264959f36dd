"""The context manager behind `simgpu run --trace` and `--summary`.

The times are those of the host, which does one thing after the other: they show order, streams and
sizes, never how long a GPU would take or what it would do at once. Under `simgpu.clock` they are
those of its estimate.
"""

from __future__ import annotations

import contextlib
import os
from typing import TextIO

from simgpu._core import hooks, world
from simgpu._profiling import timeline
from simgpu._profiling.summary import Inputs, Totals
from simgpu._util.naming import DEVICE_TYPE, visible_text


class watch(contextlib.AbstractContextManager[None]):
    """Watch the devices within the block; then write the timeline, the table, or both.

    They are written also where the block ends in an error, and before it goes on; never where the
    block is not left, as in a child that was forked within it.
    """

    def __init__(self, path: str | None, table: TextIO | None) -> None:
        self._path, self._table = path and os.path.abspath(path), table
        self._environment = dict(os.environ)  # and not what a program puts there for its children
        self._timeline = timeline.Timeline()
        self._totals, self._inputs = Totals(), Inputs()
        self._ends = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._names = [visible_text(f"{DEVICE_TYPE}:{i}") for i in range(world.device_count())]
        self._ends.callback(self._write)
        watching = [self._timeline] * (self._path is not None)
        for instrument in [*watching, *[self._totals] * (self._table is not None)]:
            hooks.add(instrument)
            self._ends.callback(hooks.remove, instrument)
        if self._table is not None:
            self._ends.enter_context(self._inputs.watched())

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _write(self) -> None:
        if self._path is not None:
            timeline.write(self._path, self._timeline.as_json(self._names), self._environment)
        if self._table is not None:
            text = self._totals.as_text(self._names, self._inputs)
            text = timeline.heading(self._environment) + text
            self._table.write(text)  # at once: other ranks write there, too
