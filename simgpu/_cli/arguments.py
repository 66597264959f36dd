"""Arguments of the commands: their types, the packages they need, the words of the program."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simgpu._fuzz.sessions import DEFAULT_DATABASE
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


# The error of a command that needs a package which simgpu itself does not.


def missing_packages(what: str, needed: Mapping[str, str]) -> bool:
    """Whether a package is missing that `what` needs; prints which, and how to install it.

    `needed` has packages by the names under which they are imported.
    """
    missing = [package for name, package in needed.items() if not importlib.util.find_spec(name)]
    if missing:
        print(f"{what} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    return bool(missing)


# Split the arguments of `simgpu run` into its own options and the program with its arguments.
#
# The program begins at the first argument that is neither an option nor an option's value: a path,
# "-", "--", "-m" or "-c". `argparse` cannot split them: it looks for the command's options behind
# the program's name too, and drops "--" and all that follows `-cTEXT`.


def split_program(
    reader: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the words for `reader`, which knows the options, and those from the program's name.

    A value is joined to its option: it may begin with "-", as a number below 0 does.
    """
    own: list[str] = []
    rest = list(words)
    while rest and not _names_a_program(rest[0]):
        word = rest.pop(0)
        if _takes_a_value(reader, word) and rest and not rest[0].startswith("--"):
            word += f"={rest.pop(0)}"
        own.append(word)
    return own, rest


def _names_a_program(word: str) -> bool:
    return word in ("-", "--") or not word.startswith("-") or word[:2] in ("-m", "-c")


def _takes_a_value(reader: argparse.ArgumentParser, word: str) -> bool:
    """Whether the word after `word` is its value; options may be shortened."""
    actions = reader._option_string_actions
    meant = [word] if word in actions else [name for name in actions if name.startswith(word)]
    return len(meant) == 1 and actions[meant[0]].nargs is None
