"""The sessions of pytest that `simgpu fuzz` and `simgpu replay` start."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence

from simgpu._fuzz.plan import Plan, absolute_database

PLUGIN = "simgpu._fuzz.pytest_side"


def pytest_command(plan: Plan, arguments: Sequence[str]) -> list[str]:
    """Return the command of a session of pytest with the plugin; `plan` gives its environment."""
    words = [sys.executable, "-m", "pytest", "-p", PLUGIN, "--devices", "simgpu"]
    return [*words, "--device-count", str(plan.devices[1]), "-p", "no:cacheprovider", *arguments]


def replay(name: str, blob: str | None, devices: tuple[int, int], database: str) -> int:
    """Run one example of the property `name` again, with pytest's own output.

    Args:
        name: the property's node id, such as tests/test_x.py::test_x.
        blob: the example's code; without one, hypothesis takes the example from `database`.

    Returns pytest's exit status.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(folder, devices, absolute_database(database), examples=1, blob=blob)
        command = pytest_command(plan, [name])
        return subprocess.run(command, env=plan.environment(), check=False).returncode
