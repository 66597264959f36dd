"""`simgpu info`: its arguments, of which there are none."""

from __future__ import annotations

import argparse
from typing import Any

from simgpu._cli.describe import description


def add_arguments(commands: Any) -> None:
    info = commands.add_parser(
        "info",
        help="say what is installed and what works here, for a bug report",
        description="Say what is installed and what works here: paste it into a bug report.",
    )
    info.set_defaults(start=start)


def start(options: argparse.Namespace) -> int:
    for line in description():
        print(line)
    return 0
