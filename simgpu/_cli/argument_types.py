"""What the commands' arguments may look like: ranges of devices, numbers from some bound on."""

from __future__ import annotations

import argparse
import math
import os
import re
from pathlib import Path
from typing import Any

from simgpu._fuzz.session_settings import DEFAULT_DATABASE
from simgpu._naming import MAX_DEVICES


def device_count(text: str) -> int:
    """Read a number of devices."""
    if not text.isdecimal() or not 1 <= int(text) <= MAX_DEVICES:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MAX_DEVICES}, got {text}")
    return int(text)


def output_file(text: str) -> Path:
    """Read the path of a file that is to be written: checked now, and written at the end."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder, and must be a file")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def device_range(text: str) -> tuple[int, int]:
    """Read 1..8 or 4."""
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= MAX_DEVICES:
        raise argparse.ArgumentTypeError(f"{text!r} is no range like 1..8 within 1..{MAX_DEVICES}")
    return low, high


def at_least(kind: Any, least: float) -> Any:
    """Return a reader of numbers of this kind that refuses those below `least`, and infinity."""

    def read(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = None
        if number is None or not least <= number < math.inf:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number from {least} on")
        return number

    return read


def add_devices_and_database(command: argparse.ArgumentParser) -> None:
    """Add the two options that fuzz and replay share."""
    command.add_argument(
        "--devices",
        type=device_range,
        default=(1, 8),
        metavar="1..8",
        help="the fewest and the most simulated devices, or one number (default: 1..8)",
    )
    command.add_argument(
        "--ranks",
        type=device_range,
        default=(1, 8),
        metavar="1..8",
        help="the fewest and the most ranks of a world of simgpu.ranks (default: 1..8)",
    )
    command.add_argument(
        "--database",
        default=DEFAULT_DATABASE,
        metavar="WHERE",
        help=f"where examples are kept: a folder, which machines may share, or redis://... "
        f"(default: {DEFAULT_DATABASE})",
    )
