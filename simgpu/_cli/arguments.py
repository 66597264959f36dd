"""What the arguments of commands may be, and the packages that some commands need."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simgpu._util.naming import MAX_DEVICES


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


def missing_packages(what: str, needed: Mapping[str, str]) -> bool:
    """Whether a package is missing that `what` needs; prints which, and how to install it.

    `needed` has packages by the names under which they are imported.
    """
    missing = [package for name, package in needed.items() if not importlib.util.find_spec(name)]
    if missing:
        print(f"{what} needs {', '.join(missing)}: pip install {' '.join(missing)}")
    return bool(missing)
