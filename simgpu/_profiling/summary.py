"""`simgpu run --summary`: a table of each device's kernels, copied bytes and peak memory."""

from __future__ import annotations

from simgpu._counting import format_bytes, plural
from simgpu._profiling.chrome_trace import index_of
from simgpu._profiling.module_inputs import Inputs
from simgpu._runtime import world
from simgpu._runtime.instruments import Instrument, Launch, Record


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
        for index, (name, device) in enumerate(zip(names, world.active_devices, strict=True)):
            kernels, received, sent, _ = rows[index]
            amounts = [format_bytes(amount) for amount in (received, sent, device.peak)]
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
