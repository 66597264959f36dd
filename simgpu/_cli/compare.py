"""`simgpu compare`: recordings of hardware beside what simulated devices do."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from simgpu._cli.arguments import missing_packages
from simgpu._config import options as config_options

# Packages that the tests of a clone import, by the name under which they are imported.
NEEDED = {"hypothesis": "hypothesis", "pytest": "pytest"}


def add_arguments(commands: Any) -> None:
    compare = commands.add_parser(
        "compare",
        help="compare recordings of real GPUs with simulated devices",
        description="Run recorded cases on simulated devices, and print how many results are the "
        "same as on the real GPU. Works only in a clone of the repository, which has "
        "the recordings.",
    )
    compare.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="a recording, such as tests/recordings/pytorch_tutorial.json",
    )
    compare.set_defaults(start=start)


def start(options: argparse.Namespace) -> int:
    """Find the tests that the first file belongs to, and replay all files with them."""
    for path in options.files:
        if not path.is_file():
            options.parser.error(f"no such file: {path}")
    belongs = "tests/support/comparison.py"
    folders = options.files[0].resolve().parents
    root = next((folder for folder in folders if (folder / belongs).is_file()), None)
    if root is None:
        options.parser.error(
            f"{options.files[0]} is not in a clone of the repository: there is no {belongs} in a "
            "folder above it"
        )
    if missing_packages("comparing", NEEDED):
        return 4
    sys.path.insert(0, str(root))
    config_options.clear_variables()
    comparison = importlib.import_module("tests.support.comparison")
    errors = importlib.import_module("tests.support.recording")
    try:
        status: int = comparison.main(options.files)
    except errors.RecordingError as error:
        options.parser.error(str(error))
    return status
