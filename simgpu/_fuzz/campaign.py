"""A campaign of fuzzing: pytest sessions until time is up, with a progress bar.

`run_campaign` is the command; `Campaign` starts and ends the sessions.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from simgpu._fuzz import report
from simgpu._fuzz.sessions import SessionSettings, absolute_database, pytest_command
from simgpu._fuzz.tally import Tally, sum_tallies
from simgpu._util.interrupts import one_interrupt
from simgpu._util.naming import plural

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
        self.collected = 0.0  # seconds of the start, which neither `minutes` nor the rate counts
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
        if not tally.properties:
            self.collected = seconds
        if self.minutes is not None:
            self.bar.n = min(seconds - self.collected, self.bar.total)
        else:
            assert self.examples is not None
            # Known once a session has collected its tests.
            self.bar.total = tally.properties * self.examples or None
            self.bar.n = tally.done(self.examples)
        total, since = tally.examples.total(), max(seconds - self.collected, 0.1)
        self.bar.set_postfix_str(
            "starting pytest, collecting tests"
            if not tally.properties
            else f"{total} examples ({total / since:.0f}/s), {len(tally.combinations)} "
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


@dataclass(frozen=True)
class CampaignOptions:
    """What the command line of `simgpu fuzz` says."""

    paths: Sequence[str]
    devices: tuple[int, int]
    database: str
    report: Path
    jobs: int
    minutes: float | None = None
    examples: int | None = None
    """For each property; if None, the time decides."""
    ranks: tuple[int, int] = (1, 8)
    keyword: str | None = None
    schedules: bool = False
    """Whether each example draws the order of its threads too."""
    as_cuda: bool = False
    """Whether the devices answer to the name cuda."""


def run_campaign(options: CampaignOptions) -> int:
    """Fuzz; returns 0, 1 if a property failed, or pytest's status if it stopped."""
    with tempfile.TemporaryDirectory(prefix="simgpu-fuzz-") as folder, one_interrupt():
        campaign = Campaign(options, Path(folder))
        status = campaign.run()
        tally = sum_tallies(Path(folder))
        log = campaign.log.read_text(errors="replace") if campaign.log.exists() else ""
    if status in (2, 3, 4, 5):
        print(log[-4000:])
        if status == 5:
            where = " ".join(options.paths)
            fits = f" fits -k {options.keyword!r}" if options.keyword else ""
            print(f"no hypothesis property (a test with @given) in {where}{fits}")
        return status
    if status not in (0, 1):  # such as one that a signal ended: pytest could not report it
        ended = f"ended with status {status}"
        if status < 0:
            ended = f"was ended by signal {-status} ({signal.strsignal(-status)})"
        print(f"{log[-4000:]}\npytest {ended}; the report has what it counted before")
        status = 1
    elif not tally.failures and (status == 1 or not tally.examples):
        if not campaign.stopped:
            print(log[-4000:])
        if not tally.examples:
            print("no example was counted")
        status = 1
    details = campaign.details()
    report.write(tally, details, options.report)
    _print_summary(tally, details, options.report)
    return 1 if tally.failures else status


class Campaign:
    """Sessions of pytest, one after the other, until the time or the examples are used up."""

    def __init__(self, options: CampaignOptions, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.minutes = None if options.examples else options.minutes or 1.0
        self.start = time.time()
        self.until = None if self.minutes is None else self.start + self.minutes * 60
        self.log = folder / "pytest.log"
        self.seconds = 0.0
        self.stopped = False  # by an interrupt
        self.progress = Progress(self.minutes, options.examples)
        database = absolute_database(options.database)
        self.settings = SessionSettings(
            str(folder),
            options.devices,
            database,
            options.jobs,
            options.examples,
            ranks=options.ranks,
            as_cuda=options.as_cuda,
        )

    def run(self) -> int:
        """Return 0, or the exit status of the session that did not end well."""
        status = 0
        try:
            while status == 0:
                left = None if self.until is None else self.until - time.time()
                if left is not None and left < min(5.0, (self.minutes or 0) * 30):
                    break
                status = self._session(left)
                if left is None:
                    break
        except KeyboardInterrupt:
            self.stopped = True
            self.progress.close()
            print("\nstopped; here is what was found so far", file=sys.stderr)
        finally:
            self.progress.close()
            self.seconds = time.time() - self.start
        return status

    def _session(self, left: float | None) -> int:
        settings = replace(self.settings, minutes=None if left is None else left / 60)
        arguments = ["-q", *self.options.paths]
        if settings.jobs > 1:
            arguments += ["-p", "xdist", "-n", str(settings.jobs), "--dist", "worksteal"]
        if self.options.schedules:
            arguments += ["--schedules", "1"]
        if self.options.keyword:
            arguments += ["-k", self.options.keyword]
        with self.log.open("w") as log:
            # A session of its own, so that Ctrl-C reaches pytest only through this process.
            session = subprocess.Popen(
                pytest_command(settings, arguments),
                env=settings.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                while True:
                    try:
                        return session.wait(timeout=0.5)
                    except subprocess.TimeoutExpired:
                        self.progress.show(sum_tallies(self.folder), time.time() - self.start)
            finally:
                _end(session)

    def details(self) -> dict[str, Any]:
        """Return what the report says of the run itself."""
        return {
            "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 1),
            "start_seconds": round(self.progress.collected, 1),
            "jobs": self.options.jobs,
            "devices": list(self.options.devices),
            "ranks": list(self.options.ranks),
            "database": self.options.database,
            "tests": list(self.options.paths),
            "keyword": self.options.keyword,
            "schedules": self.options.schedules,
            "as_cuda": self.options.as_cuda,
            "torch": importlib.metadata.version("torch"),
            "hypothesis": importlib.metadata.version("hypothesis"),
        }


_PATIENCE = 30.0  # seconds: workers on a busy machine may be long about their last counts


def _end(session: subprocess.Popen[bytes]) -> None:
    """Interrupt a session that still runs, wait a little, and end all of its processes."""
    if session.poll() is None:
        # Its workers too: each then writes down what it has counted.
        os.killpg(session.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            session.wait(timeout=_PATIENCE)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of it is left
        os.killpg(session.pid, signal.SIGKILL)


def _print_summary(tally: Tally, details: dict[str, Any], path: Path) -> None:
    words = [f"{plural(tally.examples.total(), 'example')} in {details['seconds']:.0f} s"]
    if tally.combinations:
        combinations = plural(len(tally.combinations), "combination")
        words.append(f"{combinations} of batch and devices")
    words.append(plural(len(tally.failures), "failure"))
    print(f"\n{', '.join(words)}; report: {path}")
    for failure in report.as_json(tally, details)["failures"]:
        print(f"\n{failure['property']}: {failure['error']} at {failure['location']}")
        message = report.beginning(failure["message"])
        print(f"    {message}\n    {failure['example']}\n    {failure['command']}")
        if not details["as_cuda"] and "Torch not compiled with CUDA enabled" in failure["message"]:
            print("    A test that names CUDA needs the option --as-cuda.")
