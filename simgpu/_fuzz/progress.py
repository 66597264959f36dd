"""The progress line of a campaign, on standard error."""

from __future__ import annotations

import sys

from simgpu._fuzz.report import plural
from simgpu._fuzz.tally import Tally

EVERY = 10.0  # seconds between two lines where no terminal is


class Progress:
    """Shows how far a campaign is: one line that changes, or a new line now and then."""

    def __init__(self, minutes: float | None) -> None:
        self.minutes = minutes
        self.shown = -EVERY

    def show(self, tally: Tally, seconds: float) -> None:
        """Show what was counted in the first `seconds` of the campaign."""
        terminal = sys.stderr.isatty()
        if not terminal and seconds - self.shown < EVERY:
            return
        self.shown = seconds
        total = tally.examples.total()
        words = (
            f"{total} examples ({total / max(seconds, 0.1):.0f}/s), {len(tally.tried)} "
            f"combinations, {plural(len(tally.failures), 'failure')}"
        )
        part = seconds / (self.minutes * 60) if self.minutes else 0.0
        done = round(24 * min(part, 1.0))
        bar = f"[{'#' * done}{'.' * (24 - done)}] " if self.minutes else ""
        text = f"{bar}{seconds:.0f} s  {words}"
        print(
            f"\r{text}\033[K" if terminal else text, end="" if terminal else "\n", file=sys.stderr
        )
        sys.stderr.flush()
