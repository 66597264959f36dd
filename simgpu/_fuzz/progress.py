"""The progress line of a campaign, on standard error: how far it is, and how long it will take."""

from __future__ import annotations

import io
import sys
from typing import Any

from tqdm import tqdm

from simgpu._counting import plural
from simgpu._fuzz.tally import Tally

# What TQDM_DISABLE, TQDM_ASCII and others say of other bars; an argument goes before them.
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("ascii", "colour", "lock_args", "ncols", "nrows", "position")),
    **dict.fromkeys(("disable", "gui", "write_bytes"), False),
    **dict.fromkeys(("delay", "initial"), 0),
}
EVERY = 10.0  # seconds between two lines where no terminal is


class Progress:
    """One line that changes on a terminal; elsewhere, as in a log of CI, a new line now and then.

    Args:
        minutes: how long the campaign is to run; None where the number of examples decides.
        examples: how many each property is to try; None where the time decides.
    """

    def __init__(self, minutes: float | None, examples: int | None) -> None:
        self.minutes, self.examples = minutes, examples
        self.terminal = sys.stderr.isatty()
        self.printed = -EVERY
        tqdm.monitor_interval = 0  # no thread that would refresh the line too
        self.bar = tqdm(
            total=None if minutes is None else minutes * 60,
            file=sys.stderr if self.terminal else io.StringIO(),
            bar_format="{percentage:3.0f}% |{bar:24}| {elapsed}<{remaining}{postfix}",
            dynamic_ncols=True,
            leave=False,
            **_DEFAULTS,
        )

    def show(self, tally: Tally, seconds: float) -> None:
        """Show what was counted in the first `seconds` of the campaign."""
        if self.minutes is not None:
            self.bar.n = min(seconds, self.bar.total)
        else:
            assert self.examples is not None
            # Known once a session has collected its tests.
            self.bar.total = tally.properties * self.examples or None
            self.bar.n = tally.done(self.examples)
        total = tally.examples.total()
        self.bar.set_postfix_str(
            "collecting tests"
            if not tally.properties
            else f"{total} examples ({total / max(seconds, 0.1):.0f}/s), {len(tally.combinations)} "
            f"combinations, {plural(len(tally.failures), 'failure')}",
            refresh=False,
        )
        if self.terminal:
            self.bar.refresh()
        elif seconds - self.printed >= EVERY:
            self.printed = seconds
            print(self.bar, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the line away, so that other text can follow."""
        self.bar.close()
