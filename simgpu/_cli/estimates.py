"""`simgpu run --clock MODEL`: the program in estimated time, and with --summary on other machines.

The estimate is printed when the process ends: a table, or one line of each rank under a launcher.
With --summary all ranks print tables, and a single process is run again for each other number of
devices, with its output discarded. A rank cannot be run again by itself: it would wait for others.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simgpu._util.naming import plural

_now = time.monotonic  # within a schedule it is another clock
COUNTS = (1, 2, 4, 8)
AGAIN = (
    "running it again with {} devices, without its output, for a table of speed-ups: about "
    "{:.0f} s (Ctrl-C ends it, --no-table leaves it out)\n"
)
NOT_AGAIN = (
    "not run again with other numbers of devices: this is one of several ranks; start the launcher "
    "with another number of ranks\n"
)


class ClockUntilExit:
    """Keeps a clock in force until the process ends, and reports the estimate then.

    Args:
        options: those of `simgpu run`, with the words of its command line.
        environment: the one that the command was started in.
        source: the standard input, if the program was read from it.
    """

    def __init__(
        self, options: argparse.Namespace, environment: Mapping[str, str], source: bytes | None
    ) -> None:
        self._options, self._environment, self._source = options, dict(environment), source
        self._folder, self._process, self._began = os.getcwd(), os.getpid(), _now()
        self._ends = contextlib.ExitStack()
        self._estimate: Any = None

    def start(self) -> str | None:
        """Put the clock in force; returns why not, where it is refused."""
        from simgpu._clock.estimate import clock

        model, topology = self._options.clock, self._options.topology or "pcie"
        names = model.split(",") if "," in model else model
        try:
            self._estimate = self._ends.enter_context(clock(names, topology))
        except ValueError as error:
            return f"--clock {model} --topology {topology}: {error}"
        atexit.register(self._end)
        return None

    def _end(self) -> None:
        if os.getpid() != self._process:  # a child that the program forked
            return
        summary = self._estimate.summary()
        count = len(summary.shares)
        self._ends.close()
        own = {"seconds": summary.seconds, "step": summary.step_seconds}
        if self._options.estimate_to is not None:
            self._options.estimate_to.write_text(json.dumps(own), encoding="utf-8")
            return
        from simgpu._profiling.timeline import heading

        of_rank = heading(self._environment)
        if of_rank and not self._options.summary:
            sys.stderr.write(f"{of_rank.strip()}: {summary.in_a_line()}\n")
            return
        if of_rank:  # which uses few of the devices
            used = [share for share in summary.shares if share.kernels or share.copies]
            summary = dataclasses.replace(summary, shares=used)
        others = [n for n in COUNTS if n != count]
        seconds = (_now() - self._began) * len(others)
        again = AGAIN.format(", ".join(map(str, others)), max(seconds, 1))
        wanted = self._options.summary and self._options.table
        more = (NOT_AGAIN if of_rank else again) if wanted else ""
        sys.stderr.write(f"{of_rank}{summary}\n{more}")  # in one piece: other ranks write, too
        if more == again:
            sys.stderr.flush()
            sys.stderr.write(scaling_table(self._on_others(count, own)))

    def _on_others(self, count: int, own: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """The estimate for each number of devices; Ctrl-C ends those that are still to come."""
        found = {n: own if n == count else {"failed": "interrupted"} for n in COUNTS}
        with contextlib.suppress(KeyboardInterrupt):
            for n in COUNTS:
                if n != count:
                    began = _now()
                    found[n] = self._run_with(n)
                    sys.stderr.write(f"  {plural(n, 'device')}: ran for {_now() - began:.0f} s\n")
                    sys.stderr.flush()
        return found

    def _run_with(self, count: int) -> dict[str, Any]:
        """The estimate of the program with another number of devices."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "estimate.json"
            command = again(self._options, count, report)
            ended = subprocess.run(
                command,
                cwd=self._folder,
                env=self._environment,
                input=self._source or b"",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                check=False,
            )
            if ended.returncode == 0 and report.exists():
                read: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
                return read
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        return {"failed": lines[-1] if lines else f"exit status {ended.returncode}"}


def again(options: argparse.Namespace, count: int, report: Path) -> list[str]:
    """The command that runs the program with `count` devices, and writes the estimate."""
    more = ["--devices", str(count), "--estimate-to", str(report)]  # of two such, the last counts
    return [sys.executable, "-m", "simgpu", "run", *options.own, *more, *options.program]


def scaling_table(estimates: Mapping[int, Mapping[str, Any]]) -> str:
    """The estimated time of a step, or of the whole program, by number of devices."""
    from simgpu._clock.estimate import duration

    good = {n: each for n, each in estimates.items() if "failed" not in each}
    by_step = bool(good) and all(each["step"] is not None for each in good.values())
    key = "step" if by_step else "seconds"
    what = "estimate of a step" if by_step else "estimate of it all"
    lines = [f"{'devices':<9}{what:>20}{'speed-up':>10}"]
    if not by_step and good:
        lines.insert(0, "no optimizer.step() marks steps: the estimates cover the whole program")
    first = next(iter(good.values()), None)
    for count, each in estimates.items():
        if "failed" in each:
            lines.append(f"{count:<9}{'-':>20}{'-':>10}  {each['failed']}")
            continue
        quicker = first[key] / each[key] if first is not None and each[key] else 1.0
        lines.append(f"{count:<9}{duration(each[key]):>20}{quicker:>10.2f}")
    return "\n".join(lines) + "\n"
