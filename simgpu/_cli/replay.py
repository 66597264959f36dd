"""`simgpu replay`: its arguments."""

from __future__ import annotations

import argparse
from typing import Any

from simgpu._cli.argument_types import add_devices_and_database
from simgpu._cli.fuzz import missing_packages
from simgpu._fuzz import sessions


def add_arguments(commands: Any) -> None:
    replay = commands.add_parser(
        "replay",
        help="run one failing example of a report again",
        description="Run one failing example again, with pytest's own output. A report has the "
        "whole command for each of its failures.",
    )
    replay.add_argument(
        "property",
        metavar="PROPERTY",
        help="the property's node id, such as tests/test_it.py::test_it",
    )
    replay.add_argument(
        "blob",
        nargs="?",
        metavar="CODE",
        help="the example, as the report has it (default: what the database has)",
    )
    add_devices_and_database(replay)
    replay.set_defaults(start=start)


def start(options: argparse.Namespace) -> int:
    if missing_packages():
        return 4
    return sessions.replay(
        options.property, options.blob, options.devices, options.database, options.ranks
    )
