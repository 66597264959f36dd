"""`simgpu info`: its arguments, of which there are none."""

from __future__ import annotations

import argparse
import os
import sys
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
    try:
        for line in description():
            print(line, flush=True)
    except BrokenPipeError:  # `simgpu info | head -3`: who reads has what was wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit would tell
    return 0
