"""Run one test file in a process of its own; after a crash, run the rest of it in another."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.assurance.expected import Outcome
from tests.assurance.upstream.files import ONLY_FOR, TestFile

ROOT = Path(__file__).parents[3]
RUN_ONE = Path(__file__).with_name("run_one.py")


@dataclass
class FileResult:
    """The outcomes of one file; `broken` says why there are none, or not all of them."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    broken: str = ""


def _read(path: Path, outcomes: dict[str, Outcome]) -> str | None:
    """Add what the process wrote to `outcomes`; returns the test that it did not end, if any."""
    begun = None
    for line in path.read_text(encoding="utf-8").splitlines():
        reported = json.loads(line)
        if reported["outcome"] == "started":
            begun = reported["test"]
        else:
            outcomes[reported["test"]] = Outcome(reported["outcome"], reported["text"])
            begun = None if begun == reported["test"] else begun
    return begun


def _command(file: TestFile, devices: int, ours: bool) -> list[str]:
    options = ["--devices", str(devices), "--as", file.device_type]
    if ours:
        options.append("--replace-data-parallel")
    return [sys.executable, "-m", "simgpu", "run", *options, str(RUN_ONE), str(file.path)]


def run(
    file: TestFile,
    devices: int,
    *,
    ours: bool = False,
    limit: float = 1800,
    test_limit: float = 120,
    patterns: Sequence[str] = (),
    left_out: Sequence[str] = (),
) -> FileResult:
    """Run the tests of `file` that match one of `patterns`, or all, and none of `left_out`.

    A test in which the process dies has failed; the tests after it run in another process.

    Args:
        limit: seconds for the file; tests that are left then have no outcome.
        test_limit: seconds for one test, which has failed when they are over.
    """
    environment = {name: value for name, value in os.environ.items() if name != ONLY_FOR}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )
    environment |= file.variables
    result, end = FileResult(), time.monotonic() + limit
    with tempfile.TemporaryDirectory() as folder:
        done, log = Path(folder, "done"), Path(folder, "log")
        for attempt in range(1000):
            written = Path(folder, f"outcomes{attempt}")
            written.touch()
            done.write_text("\n".join((*left_out, *result.outcomes)), encoding="utf-8")
            command = [
                *_command(file, devices, ours),
                *(str(written), str(done), str(test_limit)),
                *("ours" if ours else "pytorch", *patterns),
            ]
            with log.open("w", encoding="utf-8") as output:
                status = _wait(command, environment, output, end - time.monotonic(), file)
            begun = _read(written, result.outcomes)
            tail = log.read_text(encoding="utf-8", errors="replace")[-6000:]
            if status == 0:
                if not (result.outcomes or patterns or left_out):
                    result.broken = "there is no test in it"
                return result
            if status is None:
                result.broken = f"stopped after {limit:.0f} s, in {begun}"
                return result
            if begun is None:
                result.broken = f"the process ended with status {status}:\n{tail}"
                return result
            result.outcomes[begun] = Outcome("failed", f"ended the process ({status}):\n{tail}")
    return result


def _wait(
    command: list[str], environment: dict[str, str], output: object, seconds: float, file: TestFile
) -> int | None:
    """The exit status, or None where the time was over: the process and its own are ended then."""
    process = subprocess.Popen(
        command,
        cwd=file.path.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(max(seconds, 1))
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end_group(process.pid)
        process.wait()


def _end_group(group: int) -> None:
    """End the process and those that it has left behind, which share its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 9)
