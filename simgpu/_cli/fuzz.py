"""`simgpu fuzz`: its arguments."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from simgpu._cli.arguments import add_devices_and_database, at_least, missing_packages, output_file

# Packages that fuzzing and replaying import, by the name under which they are imported.
NEEDED = {
    "hypothesis": "hypothesis",
    "jinja2": "jinja2",
    "pytest": "pytest",
    "tqdm": "tqdm",
    "xdist": "pytest-xdist",
}


def add_arguments(commands: Any) -> None:
    fuzz = commands.add_parser(
        "fuzz",
        help="look for batches and devices that break a property",
        description="Run the hypothesis properties of a suite on ever new examples, and write a "
        "report. Ends with 1 if any of them failed.",
    )
    length = fuzz.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes",
        type=at_least(float, 0.001),
        metavar="M",
        help="of running, not counting the collection of the tests (default: 1)",
    )
    length.add_argument(
        "--examples", type=at_least(int, 1), metavar="N", help="for each property, once"
    )
    fuzz.add_argument(
        "--jobs", type=at_least(int, 1), metavar="J", help="processes (default: one per core)"
    )
    fuzz.add_argument(
        "-k",
        dest="keyword",
        metavar="EXPRESSION",
        help="only properties whose names it fits, as in pytest",
    )
    fuzz.add_argument(
        "--schedules",
        action="store_true",
        help="also draw the order of threads for each example (simgpu.schedule)",
    )
    fuzz.add_argument(
        "--report",
        default=Path("fuzz-report.html"),
        metavar="FILE",
        type=output_file,
        help="path of the page; the same report as JSON is beside it, ending in .json "
        "(default: fuzz-report.html)",
    )
    fuzz.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="files, folders or node ids of tests (default: tests)",
    )
    add_devices_and_database(fuzz)
    fuzz.set_defaults(start=start)


def start(options: argparse.Namespace) -> int:
    """Check what the arguments name, and fuzz."""
    if missing_packages("fuzzing", NEEDED):
        return 4
    paths = options.paths or ["tests"]
    absent = [path for path in paths if not os.path.exists(path.partition("::")[0])]
    if absent:
        print(f"no such tests: {', '.join(absent)}; name your own after the options")
        return 4
    if options.report.suffix == ".json":
        print(f"--report {options.report} must name the page; its JSON file ends in .json")
        return 4
    from simgpu._fuzz.campaign import CampaignOptions, run_campaign

    return run_campaign(
        CampaignOptions(
            paths=tuple(paths),
            devices=options.devices,
            ranks=options.ranks,
            database=options.database,
            report=options.report,
            jobs=options.jobs or os.cpu_count() or 1,
            minutes=options.minutes,
            examples=options.examples,
            keyword=options.keyword,
            schedules=options.schedules,
        )
    )
