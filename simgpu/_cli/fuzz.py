"""`simgpu fuzz` and `simgpu replay`: their arguments."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import Any

from simgpu._cli.arguments import at_least, device_range, missing_packages, output_file
from simgpu._fuzz import sessions

# Packages that fuzzing and replaying import, by the name under which they are imported.
NEEDED = {
    **{name: name for name in ("hypothesis", "jinja2", "pytest", "tqdm")},
    "xdist": "pytest-xdist",
}
PREFIX = "S1"  # of the tokens of schedules


def add_arguments(commands: Any) -> None:
    _add_fuzz(commands)
    _add_replay(commands)


def _add_fuzz(commands: Any) -> None:
    fuzz = commands.add_parser(
        "fuzz",
        help="search for inputs that break the hypothesis tests of a suite",
        description="Run the hypothesis tests of a suite on new examples until the time is up, and "
        "write a report. The exit status is 1 if a test failed.",
    )
    length = fuzz.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes",
        type=at_least(float, 0.001),
        metavar="M",
        help="how long to run the tests, without the time to collect them (default: 1)",
    )
    length.add_argument(
        "--examples",
        type=at_least(int, 1),
        metavar="N",
        help="number of examples of each test, in place of a time",
    )
    fuzz.add_argument(
        "--jobs",
        type=at_least(int, 1),
        default=os.cpu_count() or 1,
        metavar="J",
        help="number of processes (default: one per core)",
    )
    fuzz.add_argument(
        "-k",
        dest="keyword",
        metavar="EXPRESSION",
        help="run only the tests whose names match, as in pytest",
    )
    fuzz.add_argument(
        "--schedules",
        action="store_true",
        help="also vary the order of threads in each example (see simgpu.schedule)",
    )
    fuzz.add_argument(
        "--report",
        default=Path("fuzz-report.html"),
        metavar="FILE",
        type=output_file,
        help="path of the HTML report; the same report as JSON is written beside it, with the "
        "suffix .json (default: fuzz-report.html)",
    )
    fuzz.add_argument(
        "paths",
        nargs="*",
        default=["tests"],
        metavar="PATH",
        help="files, folders or node ids of tests (default: tests)",
    )
    _add_devices_and_database(fuzz)
    fuzz.set_defaults(start=start)


def _add_replay(commands: Any) -> None:
    replay = commands.add_parser(
        "replay",
        help="run one failing example of a fuzz report again",
        description="Run one failing example again, and show the output of pytest. The report has "
        "the full command for each failure.",
    )
    replay.add_argument(
        "property",
        metavar="PROPERTY",
        help="node id of the test, such as tests/test_it.py::test_it; or only the token of a "
        "schedule, if a test in this folder has failed with it",
    )
    replay.add_argument(
        "blob",
        nargs="?",
        metavar="CODE",
        help="code of the example in the report (default: the example in the database), or the "
        "token of a schedule",
    )
    replay.add_argument(
        "--schedules",
        action="store_true",
        help="the example was found by `simgpu fuzz --schedules`",
    )
    _add_devices_and_database(replay)
    replay.set_defaults(start=start_replay)


def _add_devices_and_database(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--as-cuda",
        action="store_true",
        help="for tests that name CUDA: their CUDA devices are simulated ones, as many as the "
        "largest number of --devices",
    )
    for name, of in (
        ("--devices", "simulated devices"),
        ("--ranks", "ranks, for tests that use simgpu.ranks"),
    ):
        command.add_argument(
            name,
            type=device_range,
            default=(1, 8),
            metavar="1..8",
            help=f"smallest and largest number, or one number, of {of} (default: 1..8)",
        )
    command.add_argument(
        "--database",
        default=sessions.DEFAULT_DATABASE,
        metavar="WHERE",
        help="where hypothesis keeps its examples: a folder (machines may share it), or "
        f"redis://... (default: {sessions.DEFAULT_DATABASE})",
    )


def start(options: argparse.Namespace) -> int:
    """Check what the arguments name, and fuzz."""
    if missing_packages("fuzzing", NEEDED):
        return 4
    absent = [path for path in options.paths if not os.path.exists(path.partition("::")[0])]
    if absent:
        print(f"no such tests: {', '.join(absent)}; name your own after the options")
        return 4
    if options.report.suffix == ".json":
        print(f"--report {options.report} must name the page; its JSON file ends in .json")
        return 4
    from simgpu._fuzz.campaign import CampaignOptions, run_campaign

    names = [field.name for field in dataclasses.fields(CampaignOptions)]
    return run_campaign(CampaignOptions(**{name: getattr(options, name) for name in names}))


def start_replay(options: argparse.Namespace) -> int:
    """Run the example or the schedule that the arguments name."""
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
            options.as_cuda,
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
    return sessions.replay_schedule(name, token, options.devices, options.as_cuda)
