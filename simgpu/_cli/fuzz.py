"""The arguments of `simgpu fuzz` and `simgpu replay`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from simgpu._fuzz.campaign import DATABASE


def device_range(text: str) -> tuple[int, int]:
    """Read 1..8 or 4."""
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= 64:
        raise argparse.ArgumentTypeError(f"{text!r} is no range like 1..8 within 1..64")
    return low, high


def _at_least(kind: Any, least: float) -> Any:
    def read(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not number >= least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number from {least} on")
        return number

    return read


def add_arguments(commands: Any) -> None:
    """Add the two commands to the subparsers of `python -m simgpu`."""
    fuzz = commands.add_parser(
        "fuzz",
        help="look for batches and devices that break a property",
        description="Run the hypothesis properties of a suite on ever new examples, and write a "
        "report. Ends with 1 if any of them failed.",
    )
    length = fuzz.add_mutually_exclusive_group()
    length.add_argument(
        "--minutes",
        type=_at_least(float, 0.001),
        metavar="M",
        help="of running, not counting the collection of the tests (default: 1)",
    )
    length.add_argument(
        "--examples", type=_at_least(int, 1), metavar="N", help="for each property, once"
    )
    fuzz.add_argument("--jobs", type=_at_least(int, 1), metavar="J", help="default: one per core")
    fuzz.add_argument("-k", dest="keyword", metavar="PROPERTY", help="as in pytest")
    fuzz.add_argument("--report", default="fuzz-report.html", metavar="FILE", type=Path)
    fuzz.add_argument("paths", nargs="*", metavar="PATH", help="tests (default: tests)")
    replay = commands.add_parser("replay", help="run one failing example of a report again")
    replay.add_argument("property", metavar="PROPERTY")
    replay.add_argument("blob", nargs="?", metavar="CODE")
    for command in (fuzz, replay):
        command.add_argument("--devices", type=device_range, default=(1, 8), metavar="1..8")
        command.add_argument(
            "--database",
            default=DATABASE,
            metavar="WHERE",
            help=f"where examples are kept: a folder, which machines may share, or redis://... "
            f"(default: {DATABASE})",
        )
