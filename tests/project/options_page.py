"""docs/options.md: options, markers and fixtures of pytest, commands, environment variables.

`python -m tests.project.options_page` writes the page from the code that reads them.
"""

import argparse
import contextlib
from pathlib import Path
from unittest import mock

from simgpu import pytest_plugin
from simgpu.__main__ import parser
from simgpu._config.options import AS_CUDA, COUNT, NAMES, OPTIONS, SETTINGS
from simgpu._pytest import options
from simgpu._util.naming import CPU_KERNELS, FULL_TRACE, RUN_FOLDER, STRICT

PAGE = Path(__file__).parents[2] / "docs" / "options.md"

HEAD = """# Options, commands and environment variables

| you want | use |
| --- | --- |
| a suite that names CUDA, unedited | [`pytest --as-cuda --device-count 4`](#options-of-pytest) |
| a test on exactly two devices | [`@pytest.mark.devices(2)`](#markers-of-pytest) and the fixture \
[`devices`](#fixtures-of-pytest) |
| less memory, or that of a GPU model | `--device-memory 2GiB`, `--device-model T4` in pytest; \
`--memory`, `--model` in [`simgpu run`](#simgpu-run) |
| a script that names CUDA, unedited | [`simgpu run --devices 4 train.py`](#simgpu-run) |
| a table of kernels, copies and memory | [`simgpu run --summary`](#simgpu-run) |
| races, late kernels, other orders of threads, failing allocations | [`--races`, `--async`, \
`--schedules 20`, `--faults oom`](#options-of-pytest) |
| an estimate of time | [`simgpu run --clock A100`](#simgpu-run) |
| the batch that breaks a test | [`simgpu fuzz`](#simgpu-fuzz) |
| devices in a process and all that it starts | \
[`SIMGPU_DEVICE_COUNT=4 SIMGPU_AS_CUDA=1`](#environment-variables) |

Commands are called as `simgpu COMMAND` or `python -m simgpu COMMAND`.
"""

FOOT = """
`python -m tests.project.options_page` writes this page from the code that reads the options.
"""

FIXTURES = ("devices", "module_devices", "session_devices", "ranks")

VARIABLES = {
    COUNT: "number of simulated devices of the process and of its child processes: 1 to 64",
    **{option.variable: option.page for option in OPTIONS.values()},
    AS_CUDA: "`1`: the devices answer to the name cuda; `force`: also where real GPUs are",
    CPU_KERNELS: "operators that may use their CPU kernel on a device, such as "
    '`"mine::op,other::*"` ([why](fidelity.md#known-differences-from-cuda))',
    FULL_TRACE: "`1`: tracebacks show the frames of simgpu, too",
    RUN_FOLDER: "set by `simgpu run`: where its processes [find each other](nvml.md)",
    STRICT: "`1`: warn of [bugs that raise no error on GPUs](silent_bugs.md)",
}


class _Recorder:
    """Takes the options that the plugin adds."""

    def __init__(self):
        self.rows = []

    def getgroup(self, *_):
        return self

    def addoption(self, name, *, dest, **arguments):
        reader = argparse.ArgumentParser()
        self.rows.append(_row(reader.add_argument(name, dest=dest, **arguments)))


class _Config:
    """Takes the markers that the plugin registers."""

    def __init__(self):
        self.markers = []

    def addinivalue_line(self, _, line):
        self.markers.append(line)


def _row(action):
    names = "`, `".join(action.option_strings) or action.metavar or action.dest
    values = action.metavar or (action.choices and "{" + ",".join(action.choices) + "}")
    takes_value = action.nargs != 0 and action.option_strings and values and values != "..."
    text = (action.help or "").replace("%(default)s", str(action.default))
    return (f"`{names}{f' {values}' if takes_value else ''}`", text.replace("__", r"\_\_"))


def _table(head, rows):
    cells = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(c.replace('|', chr(92) + '|') for c in row)} |\n" for row in cells
    )


def of_pytest():
    """Rows of the options, markers and fixtures of the plugin."""
    recorder, config = _Recorder(), _Config()
    options.add_options(recorder)
    # The markers are registered before options are read.
    with (
        mock.patch.object(pytest_plugin, "read_options", side_effect=KeyError),
        contextlib.suppress(KeyError),
    ):
        pytest_plugin.pytest_configure(config)
    markers = [
        (f"`@pytest.mark.{name}`", text)
        for name, _, text in (line.partition(": ") for line in config.markers)
    ]
    fixtures = [
        (f"`{name}`", _paragraph(getattr(pytest_plugin, name).__doc__)) for name in FIXTURES
    ]
    return recorder.rows, markers, fixtures


def _paragraph(doc):
    return " ".join(doc.partition("\n\n")[0].split()).replace("``", "`")


def commands():
    """(name, description, rows) of each command."""
    (choices,) = (a.choices for a in parser()._actions if isinstance(a.choices, dict))
    for name, command in choices.items():
        shown = [a for a in command._actions if a.help != argparse.SUPPRESS and a.dest != "help"]
        yield name, command.description, [_row(action) for action in shown]


def page(_=""):
    """The text of the page."""
    plugin, markers, fixtures = of_pytest()
    text = f"{HEAD}\n## Options of pytest\n\n{_table(('option', 'what it does'), plugin)}"
    text += f"\n## Markers of pytest\n\n{_table(('marker', 'what it does'), markers)}"
    text += f"\n## Fixtures of pytest\n\n{_table(('fixture', 'what it is'), fixtures)}"
    text += "\n## Commands\n"
    for name, description, rows in commands():
        text += f"\n### simgpu {name}\n\n{description}\n"
        if rows:
            text += f"\n{_table(('argument', 'what it does'), rows)}"
    rows = [(f"`{name}`", VARIABLES[name]) for name in (*NAMES, *SETTINGS)]
    text += f"\n## Environment variables\n\n{_table(('variable', 'what it does'), rows)}"
    return text + FOOT


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
