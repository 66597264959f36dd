"""A plugin of pytest: profiles of hypothesis and settings of the suite, and its option `--record`.

The devices come from the plugin (`simgpu/pytest_plugin.py`), the tiers `--full` and `--assurance`
from another (`tests/support/tiers.py`); this file says how many examples a property gets, and turns
a session into one that records what hardware does. Choose a profile with
`pytest --hypothesis-profile=dev` (or `fuzz`).
"""

import os
import sys
from pathlib import Path

import pytest

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError as error:
    sys.exit(
        f"the suite, and its option --record, need {error.name}, which is not installed: "
        "python -m pip install -c constraints.txt -e '.[test]'"
    )

ROOT = Path(__file__).parents[2]

# Intel's library (MKL) picks its kernels by where in memory a matrix begins, and their sums differ
# in the last bit. The suite compares bits of tensors at different addresses, so it asks for the
# mode in which results do not depend on addresses; MKL reads this when it is first called.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# Where one of these is set, pytest shows all that differs in two lists. For a thousand elements it
# takes minutes, for each example of a property and each planted fault, whose text nobody reads.
for name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(name, None)

# Where Python may write no compiled files beside the sources (PYTHONDONTWRITEBYTECODE), each of
# the suite's many interpreters, and each session, would compile all modules again: they share a
# folder for them.
if sys.dont_write_bytecode and sys.pycache_prefix is None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".pytest_cache" / "compiled")
    sys.dont_write_bytecode, sys.pycache_prefix = False, os.environ["PYTHONPYCACHEPREFIX"]

# `devices` is made once per test and shared by the test's examples, which each use it through a
# subset of their own and leave nothing behind: hypothesis cannot know that the sharing is intended.
SHARED_DEVICES = [HealthCheck.function_scoped_fixture]

# The same examples on every run, so that a red build is red for everyone; those of the default tier
# are the first ones of the full one.
settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=10,
    print_blob=True,
    suppress_health_check=SHARED_DEVICES,
)
settings.register_profile("full", settings.get_profile("ci"), max_examples=25)
settings.register_profile(
    "dev", deadline=None, max_examples=100, suppress_health_check=SHARED_DEVICES
)
# Building a large example is not a fault of the test that asked for it.
settings.register_profile(
    "fuzz",
    deadline=None,
    max_examples=5000,
    print_blob=True,
    suppress_health_check=[*SHARED_DEVICES, HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("ci")


def pytest_addoption(parser):
    parser.getgroup("simgpu").addoption(
        "--record",
        type=Path,
        metavar="FILE",
        help="run no test; write what the devices do to FILE, such as tests/recordings/NAME.json",
    )


def pytest_configure(config):
    if config.getoption("--full") and not config.getoption("--hypothesis-profile"):
        settings.load_profile("full")
    path = config.getoption("--record")
    if path is None:
        return
    if path.suffix != ".json" or not path.parent.is_dir():
        raise pytest.UsageError(f"--record {path} must name a .json file in a folder that exists")
    if config.getoption("--devices") == "auto" and not config.getoption("--oversubscribe"):
        from simgpu._pytest.pools import gpu_count

        if (here := gpu_count()) < 2:
            raise pytest.UsageError(
                f"--record writes what hardware does, and torch finds {here} GPUs here: add "
                "--oversubscribe to record on one GPU, or --devices simgpu to record simulated "
                "devices (the recording will say so)"
            )


def pytest_collection_modifyitems(config, items):
    """Keep either the one test that records or all others."""
    wanted = config.getoption("--record") is not None
    out = [item for item in items if (item.name == "test_record_these_devices") != wanted]
    items[:] = [item for item in items if item not in out]
    if wanted:
        config.hook.pytest_deselected(items=out)


def pytest_terminal_summary(terminalreporter):
    """Say what was replayed, from where, and how much of it was as recorded."""
    lines = {
        text
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == "recording"
    }
    if lines:
        from tests.support.comparison import row_of_json, table

        terminalreporter.section("simulated against hardware")
        rows = sorted(line for line in lines if line.startswith("{"))
        if rows:
            terminalreporter.write(table(map(row_of_json, rows)))
        for line in sorted(lines.difference(rows)):
            terminalreporter.write_line(line)
