"""`simgpu replay`: its arguments."""

from __future__ import annotations

import argparse
from typing import Any

from simgpu._cli.arguments import add_devices_and_database, missing_packages
from simgpu._cli.fuzz import NEEDED
from simgpu._fuzz import sessions

PREFIX = "S1"  # of the tokens of schedules


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
        help="the property's node id, such as tests/test_it.py::test_it; or nothing but the token "
        "of a schedule, if a test has failed under it in this folder",
    )
    replay.add_argument(
        "blob",
        nargs="?",
        metavar="CODE",
        help="the example, as the report has it (default: what the database has), or the token "
        "of a schedule",
    )
    replay.add_argument(
        "--schedules",
        action="store_true",
        help="the example comes from a campaign with --schedules",
    )
    add_devices_and_database(replay)
    replay.set_defaults(start=start)


def start(options: argparse.Namespace) -> int:
    if missing_packages("replaying", NEEDED):
        return 4
    token = options.blob or options.property
    if not token.startswith(PREFIX):
        if options.blob and not sessions.is_example(options.blob):
            print(
                f"{options.blob!r} is no code of an example, and no token of a schedule: copy the "
                "whole command from the report, or leave it out for what the database has"
            )
            return 4
        return sessions.replay(
            options.property,
            options.blob,
            options.devices,
            options.database,
            options.ranks,
            options.schedules,
        )
    from simgpu._pytest import repeats

    name = options.property if options.blob else repeats.test_of(token)
    if name is None:
        print(
            f"no test is known here for the schedule {token}: pass the test too (simgpu replay "
            "tests/test_it.py::test_it TOKEN), or repeat a program of your own within "
            "simgpu.schedule(replay=TOKEN)"
        )
        return 4
    return sessions.replay_schedule(name, token, options.devices)
