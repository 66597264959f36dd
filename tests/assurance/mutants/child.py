"""One forked process with one mutant in it: it runs tests until one fails, and tells its parent."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

PATIENCE = 15.0  # seconds for a test, besides the time that it took without a mutant
TIMES = 12  # of the time that it took without a mutant
STILL = 5.0  # seconds in which nothing of a child runs: its threads wait for each other


@dataclass(frozen=True)
class Verdict:
    """The verdict of the tests: "killed", "survived", "timeout", "crashed" or "unreached"."""

    status: str
    ran: int = 0
    test: str = ""
    """The test that failed, or that was running."""
    words: str = ""


class Reporter:
    """Tells the parent which test begins, and what became of it; ends at the first failure."""

    def __init__(self, channel: int, costs: dict[str, float]) -> None:
        self.channel = channel
        self.costs = costs

    def tell(self, **words: object) -> None:
        os.write(self.channel, json.dumps(words).encode() + b"\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        allowed = PATIENCE + TIMES * self.costs.get(nodeid, 1.0)
        # A loop without end spends time of the CPU, and a busy machine does not make it spend more.
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used + allowed) + 1, hard))
        self.tell(test=nodeid, allowed=allowed)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = str(report.longrepr).splitlines() or [""]
            errors = [line for line in lines if line.startswith("E ")] or lines[-1:]
            self.tell(status="killed", test=report.nodeid, words=errors[0][:200])
            os._exit(0)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            words = str(report.longrepr).splitlines()[-1:]
            self.tell(status="killed", test=report.nodeid, words="".join(words)[:200])
            os._exit(0)


def in_child(work: Callable[[int], None], folder: str) -> tuple[int, int]:
    """Fork; the child does `work(channel)` and ends. Returns its id and where it is heard."""
    heard, channel = os.pipe()
    process = os.fork()
    if not process:
        _become_child(work, channel, folder)
    os.close(channel)
    return process, heard


def _become_child(work: Callable[[int], None], channel: int, folder: str) -> NoReturn:
    status = 1
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        work(channel)
        status = 0
    except BaseException as error:
        note = {"status": "killed", "test": "", "words": f"{type(error).__name__}: {error}"[:200]}
        with contextlib.suppress(OSError):
            os.write(channel, json.dumps(note).encode() + b"\n")
    finally:
        os._exit(status)


def _is_still(leader: int) -> bool:
    """Whether all threads of a session wait. One that waits for the CPU does not: it is busy."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            if os.getsid(int(folder.name)) != leader:
                continue
            for stat in folder.glob("task/*/stat"):
                if stat.read_text().rpartition(")")[2].split()[0] in "RD":
                    return False
    return Path("/proc/self/stat").exists()


def listen(process: int, heard: int, wall_factor: float = 4.0) -> Verdict:
    """Wait for the child's verdict; one that is silent for too long is ended, with its children.

    So is one that nobody waits for any more, after Ctrl-C: its session is its own.
    """
    try:
        verdict, ran, test = _told(process, heard, wall_factor)
    finally:
        status = _end(process, heard)
    if verdict is None:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        name = (
            signal.Signals(number).name if number else f"exit {os.waitstatus_to_exitcode(status)}"
        )
        slow = number in (signal.SIGXCPU, signal.SIGALRM)
        verdict = {"status": "timeout" if slow else "crashed", "test": test, "words": name}
    return Verdict(verdict["status"], ran, verdict.get("test", test), verdict.get("words", ""))


def _told(process: int, heard: int, wall_factor: float) -> tuple[dict[str, Any] | None, int, str]:
    """The verdict, how many tests the child has begun, and the last of them."""
    ran, test = 0, ""
    buffer = b""
    deadline = time.monotonic() + 120
    still_since = math.inf
    verdict: dict[str, Any] | None = None
    while verdict is None:
        ready, _, _ = select.select([heard], [], [], STILL / 10)
        now = time.monotonic()
        if not ready:
            still_since = min(still_since, now) if _is_still(process) else math.inf
            if now > deadline or now > still_since + STILL:
                verdict = {"status": "timeout", "test": test}
            continue
        still_since = math.inf
        more = os.read(heard, 1 << 16)
        if not more:
            break
        *lines, buffer = (buffer + more).split(b"\n")
        for line in lines:
            reported = json.loads(line)
            if "status" in reported:
                verdict = reported
                break
            ran, test = ran + 1, reported["test"]
            deadline = time.monotonic() + wall_factor * reported["allowed"]
    return verdict, ran, test


def _end(process: int, heard: int) -> int:
    """End a child and all of its session; returns what `os.waitpid` says of it."""
    os.close(heard)
    for end in (os.killpg, os.kill):  # it may not have begun its session yet
        with contextlib.suppress(ProcessLookupError):
            end(process, signal.SIGKILL)
    return os.waitpid(process, 0)[1]


def run_items(items: Sequence[pytest.Item]) -> None:
    """Run tests that this process has collected, in the order given."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
