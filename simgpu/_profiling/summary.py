"""`simgpu run --summary`: a table of each device's kernels, copies, batches and peak memory.

`watch` writes it, and the timeline of `--trace`. The times are those of the host, which does one
thing after the other: they show order, streams and sizes, never how long a GPU would take or what
it would do at once. Under `simgpu.clock` they are those of its estimate.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import torch
from torch.utils import _pytree

from simgpu._core import hooks, world
from simgpu._core.hooks import Instrument, Launch, Record
from simgpu._profiling import timeline
from simgpu._profiling.timeline import index_of
from simgpu._util.naming import DEVICE_TYPE, format_bytes, plural, visible_text
from simgpu._util.patching import Patches

# The batch column of `--summary`: bytes of tensors that modules were called with, per device.
#
# Counted are the tensor arguments of outermost calls of modules, in every thread. A module without
# parameters (a loss, an activation) is skipped, and so is a wrapper such as DataParallel: what
# counts there is the calls of its replicas.


class _PerThread(threading.local):
    """Whether the calling thread is inside a call that was counted."""

    inside = False


def _is_parallel_wrapper(module: torch.nn.Module) -> bool:
    return hasattr(module, "device_ids") and isinstance(
        getattr(module, "module", None), torch.nn.Module
    )


def _has_parameters(module: torch.nn.Module) -> bool:
    """Whether the module has parameters; PyTorch's replicas keep theirs elsewhere."""
    return getattr(module, "_is_replica", False) or next(module.parameters(), None) is not None


class Inputs:
    """Bytes of tensors that modules were called with, by the index of their device."""

    def __init__(self) -> None:
        self.nbytes: Counter[int] = Counter()
        self._lock = threading.Lock()

    def add(self, arguments: Iterable[Any]) -> None:
        """See the arguments of one call."""
        with self._lock:
            for value in _pytree.tree_leaves(tuple(arguments)):
                if isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE:
                    self.nbytes[value.get_device()] += value.numel() * value.element_size()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count within the block."""
        stock, per_thread, patches = torch.nn.Module.__call__, _PerThread(), Patches()

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if per_thread.inside or _is_parallel_wrapper(module) or not _has_parameters(module):
                return stock(module, *args, **kwargs)
            self.add((*args, *kwargs.values()))
            per_thread.inside = True
            try:
                return stock(module, *args, **kwargs)
            finally:
                per_thread.inside = False

        patches.set(torch.nn.Module, "__call__", call)
        try:
            yield
        finally:
            patches.undo()


class Totals(Instrument):
    """Sums per device."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}  # kernels, bytes in, bytes out, bytes written
        # Calls and bytes of torch.distributed, by operator, group and its ranks.
        self._collectives: dict[tuple[str, str, int], list[int]] = {}

    def after_launch(self, launch: Launch, record: Record) -> None:
        if record.collective is not None:
            about = record.op, record.collective.group, len(record.collective.ranks)
            counts = self._collectives.setdefault(about, [0, 0])
            counts[0] += 1
            counts[1] += record.collective.nbytes
            return
        source, target = index_of(record.source), index_of(record.target)
        if record.kind == "copy":
            self._row(target)[1] += record.nbytes
            self._row(source)[2] += record.nbytes
        elif record.kind == "kernel":
            row = self._row(source)
            row[0] += 1
            row[3] += record.nbytes

    def _row(self, index: int) -> list[int]:
        return self._rows.setdefault(index, [0, 0, 0, 0])

    def as_text(self, names: list[str], inputs: Inputs) -> str:
        """The table, with two shares of each device.

        `work` counts the bytes that kernels wrote, `batch` the bytes that models were called
        with.
        """
        rows = [self._row(index) for index in range(len(names))]
        written = [row[3] for row in rows]
        given = [inputs.nbytes[index] for index in range(len(names))]
        lines = [
            f"{'device':<10}{'kernels':>9}{'in':>13}{'out':>13}{'peak memory':>13}"
            f"{'work':>8}{'batch':>8}"
        ]
        for index, (name, device) in enumerate(zip(names, world.active_devices, strict=True)):
            kernels, received, sent, _ = rows[index]
            peak = device.placement().amounts["allocated_bytes"].peak()
            amounts = [format_bytes(amount) for amount in (received, sent, peak)]
            cells = "".join(f"{amount:>13}" for amount in amounts)
            shares = f"{_share(written, index):>8}{_share(given, index):>8}"
            lines.append(f"{name:<10}{kernels:>9}{cells}{shares}")
        if self._collectives:
            lines.append(f"{'collective':<40}{'calls':>9}{'bytes':>13}  group")
        for (op, group, ranks), (calls, nbytes) in sorted(self._collectives.items()):
            name = op.removeprefix("c10d.").strip("_")
            where = f"{group} ({plural(ranks, 'rank')})"
            lines.append(f"{name:<40}{calls:>9}{format_bytes(nbytes):>13}  {where}")
        return "\n".join(lines) + "\n"


def _share(amounts: list[int], index: int) -> str:
    return f"{amounts[index] / sum(amounts):.1%}" if any(amounts) else "-"


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
