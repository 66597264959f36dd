"""`python -m simgpu fuzz` and `replay`: the sessions of pytest below, and the progress bar."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simgpu._fuzz import report as fuzz_report
from simgpu._fuzz.tally import Tally, sum_tallies

PLUGIN = "simgpu._fuzz.pytest_side"
PLAN = "SIMGPU_FUZZ_PLAN"
DATABASE = ".hypothesis/examples"


def _pytest(plan: dict[str, Any], arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command and environment of a session of pytest with the plugin."""
    words = [sys.executable, "-m", "pytest", "-p", PLUGIN, "--devices", "simgpu"]
    words += ["--device-count", str(plan["devices"][1]), "-p", "no:cacheprovider", *arguments]
    return words, {**os.environ, PLAN: json.dumps(plan)}


def replay(options: argparse.Namespace) -> int:
    """Run one example again, with pytest's own output; returns pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        plan = _plan(options, folder, jobs=1) | {"examples": 1}
        if options.blob:
            plan["blob"] = options.blob
        command, environment = _pytest(plan, [options.property])
        return subprocess.run(command, env=environment, check=False).returncode


def _plan(options: argparse.Namespace, folder: str, jobs: int) -> dict[str, Any]:
    database = options.database
    if "://" not in database:
        database = os.path.abspath(database)
    return {
        "folder": folder,
        "devices": options.devices,
        "database": database,
        "examples": None,
        "minutes": None,
        "jobs": jobs,
    }


def fuzz(options: argparse.Namespace) -> int:
    """Run the whole thing; returns 0, 1 if a property failed, or pytest's status if it stopped."""
    missing = [name for name in ("pytest", "hypothesis", "xdist") if not _there(name)]
    if missing:
        print(f"fuzzing needs {' and '.join(missing)}: pip install hypothesis pytest pytest-xdist")
        return 4
    paths = options.paths or ["tests"]
    absent = [path for path in paths if not os.path.exists(path.partition("::")[0])]
    if absent:
        print(f"no such tests: {', '.join(absent)}; name your own after the options")
        return 4
    if options.report.suffix == ".json":
        print(f"--report {options.report} names the page; its twin is the one that ends in .json")
        return 4
    options.report.parent.mkdir(parents=True, exist_ok=True)
    jobs = options.jobs or os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="simgpu-fuzz-") as folder, one_interrupt():
        campaign = Campaign(options, paths, jobs, Path(folder))
        status = campaign.run()
        tally = sum_tallies(Path(folder))
        log = campaign.log.read_text(errors="replace") if campaign.log.exists() else ""
    if status in (2, 3, 4, 5):
        print(log[-4000:])
        if status == 5:
            print(f"no hypothesis property in {' '.join(paths)} fits -k {options.keyword!r}")
        return status
    if not tally.failures and (status == 1 or not tally.examples):
        print(f"{log[-4000:]}\nno example was counted" if not tally.examples else log[-4000:])
        status = 1
    details = campaign.details()
    fuzz_report.write(tally, details, options.report)
    _summary(tally, details, options.report)
    return 1 if tally.failures else status


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """Let the first SIGINT or SIGTERM raise ``KeyboardInterrupt``, and no other: a report follows.

    Also where SIGINT was ignored, as a shell's scripts have it for what they start with ``&``.
    """
    both = (signal.SIGINT, signal.SIGTERM)

    def stop(*_: object) -> None:
        for number in both:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(number, stop) for number in both]
    try:
        yield
    finally:
        for number, handler in zip(both, before, strict=True):
            signal.signal(number, handler or signal.SIG_DFL)


def _there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


class Campaign:
    """Sessions of pytest, one after the other, until the time or the examples are used up."""

    def __init__(
        self, options: argparse.Namespace, paths: list[str], jobs: int, folder: Path
    ) -> None:
        self.options, self.paths, self.jobs, self.folder = options, paths, jobs, folder
        self.minutes = None if options.examples else options.minutes or 1.0
        self.start = time.time()
        self.until = None if self.minutes is None else self.start + self.minutes * 60
        self.log = folder / "pytest.log"
        self.plan = _plan(options, str(folder), jobs)
        self.seconds = 0.0
        self.printed = -10.0

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
            print("\nstopped; here is what was found so far", file=sys.stderr)
        finally:
            self.seconds = time.time() - self.start
        return status

    def _session(self, left: float | None) -> int:
        plan = self.plan | {
            "examples": self.options.examples,
            "minutes": None if left is None else left / 60,
        }
        arguments = ["-q", *self.paths]
        if self.jobs > 1:
            arguments += ["-n", str(self.jobs), "--dist", "worksteal"]
        if self.options.keyword:
            arguments += ["-k", self.options.keyword]
        command, environment = _pytest(plan, arguments)
        with self.log.open("w") as log:
            # A session of its own, so that Ctrl-C reaches pytest through this process alone.
            session = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                while True:
                    try:
                        return session.wait(timeout=0.5)
                    except subprocess.TimeoutExpired:
                        self._show()
            finally:
                self._end(session)

    def _end(self, session: subprocess.Popen[bytes]) -> None:
        if session.poll() is None:
            session.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                session.wait(timeout=10)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of it is left
            os.killpg(session.pid, signal.SIGKILL)

    def _show(self) -> None:
        tally = sum_tallies(self.folder)
        now = time.time() - self.start
        terminal = sys.stderr.isatty()
        if not terminal and now - self.printed < 10:
            return
        self.printed = now
        total = tally.examples.total()
        words = (
            f"{total} examples ({total / max(now, 0.1):.0f}/s), {len(tally.tried)} combinations, "
            f"{fuzz_report.plural(len(tally.failures), 'failure')}"
        )
        part = now / (self.minutes * 60) if self.minutes else 0.0
        done = round(24 * min(part, 1.0))
        bar = f"[{'#' * done}{'.' * (24 - done)}] " if self.minutes else ""
        text = f"{bar}{now:.0f} s  {words}"
        print(
            f"\r{text}\033[K" if terminal else text, end="" if terminal else "\n", file=sys.stderr
        )
        sys.stderr.flush()

    def details(self) -> dict[str, Any]:
        """Return what the report says of the run itself."""
        return {
            "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 1),
            "jobs": self.jobs,
            "devices": list(self.options.devices),
            "database": self.options.database,
            "tests": self.paths,
            "keyword": self.options.keyword,
            "torch": importlib.metadata.version("torch"),
            "hypothesis": importlib.metadata.version("hypothesis"),
        }


def _summary(tally: Tally, details: dict[str, Any], report: Path) -> None:
    total = tally.examples.total()
    print(
        f"\n{total} examples in {details['seconds']:.0f} s, {len(tally.tried)} combinations of "
        f"batch and devices, {fuzz_report.plural(len(tally.failures), 'failure')}; "
        f"report: {report}"
    )
    for failure in fuzz_report.as_json(tally, details)["failures"]:
        print(f"\n{failure['property']}: {failure['error']} at {failure['place']}")
        print(f"    {failure['example']}\n    {failure['command']}")
