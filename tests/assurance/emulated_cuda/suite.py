"""`pytest --devices cuda` on emulated GPUs, held against `expected.toml`.

The table has the limits of the emulation, each with its reason, and nothing else.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.assurance import expected
from tests.assurance.emulated_cuda.environment import ROOT

FILE = Path(__file__).with_name("expected.toml")
FOLDERS = ("tests/devices", "tests/dataparallel", "tests/hardware")
PLUGIN = "tests.assurance.emulated_cuda.pytest_plugin"


def _outcomes(path):
    """The last outcome of each test; a failure stays one, whatever a later phase has."""
    outcomes = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        one = json.loads(line)
        if outcomes.get(one["test"], ("",))[0] != "failed":
            outcomes[one["test"]] = expected.Outcome(one["outcome"], one["text"])
    return outcomes


def run(machine, paths=FOLDERS, workers=1, limit=7200, more=()):
    """Run a session of pytest on emulated GPUs; returns its outcomes held against the table.

    The session runs in workers of pytest-xdist, so that one that crashes fails its test only.

    Args:
        limit: seconds after which the session is ended.
        more: further arguments of pytest.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--devices", "cuda", "--full"]
    command += ["-p", PLUGIN, "-p", "no:cacheprovider", "-n", str(workers)]
    command += ["--gpus-per-worker", str(max(1, machine.devices // workers))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "outcomes")
        environment = machine.environment(EMULATED_CUDA_OUTCOMES=str(path))
        try:
            done = subprocess.run(
                [*command, *more, *paths],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=limit,
                check=False,
            )
            # 0: all passed, 1: some failed; anything else means that not all tests ran.
            broken = "" if done.returncode in (0, 1) else done.stdout[-3000:]
        except subprocess.TimeoutExpired:
            broken = f"ended after {limit} s"
        result = expected.compare(_outcomes(path), expected.read(FILE))
    result.broken = broken
    return result


def report(result, full=False):
    """The result as text: counts, and what was unexpected."""
    lines = [result.counts()]
    lines += [f"  {len(tests):4} {reason}" for reason, tests in result.known.items()]
    for test, text in result.failures.items():
        errors = [line[2:] for line in text.splitlines() if line.startswith("E ")] or [text[-200:]]
        lines.append(f"  FAILED {test}\n      {errors[0].strip()[:200]}")
        lines += [text] if full else []
    lines += [f"  PASSED {test}, which expected.toml expects to fail" for test in result.passes]
    return "\n".join([*lines, *([f"BROKEN {result.broken}"] if result.broken else [])])
