"""The map of the report: for each batch and number of devices, how many examples had them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simgpu._fuzz.tally import Tally

WIDEST = 64
"""The largest batch with a column of its own; one more column is for all larger ones."""


@dataclass(frozen=True)
class Cell:
    """One batch on one number of devices."""

    batch: str
    devices: int
    examples: int
    failed: int
    depth: float
    """How dark the cell is: 0 for one example, 1 for as many as any cell has."""


def heat_map(tally: Tally, low: int, high: int) -> dict[int, list[Cell]]:
    """Return the cells of each row of the map, by the number of devices."""
    most = max(tally.combinations.values(), default=1)

    def cell(batch: str, n: int, examples: int, failed: int) -> Cell:
        depth = math.log(max(examples, 1)) / math.log(max(most, 2))
        return Cell(batch, n, examples, failed, min(1.0, round(depth, 2)))

    rows = {}
    for n in range(low, high + 1):
        cells = [
            cell(str(b), n, tally.combinations[b, n], tally.failed[b, n]) for b in range(WIDEST + 1)
        ]
        larger = [b for b, devices in tally.combinations if devices == n and b > WIDEST]
        examples = sum(tally.combinations[b, n] for b in larger)
        failed = sum(tally.failed[b, n] for b in larger)
        rows[n] = [*cells, cell(f"over {WIDEST}", n, examples, failed)]
    return rows


def never_tried(tally: Tally, low: int, high: int) -> dict[int, list[int]] | None:
    """Return the batches from 0 to 64 that no example had, for low to high devices.

    None where no example said what it had, so that nothing is known.
    """
    if not tally.combinations:
        return None
    return {
        n: [batch for batch in range(WIDEST + 1) if not tally.combinations[batch, n]]
        for n in range(low, high + 1)
    }
