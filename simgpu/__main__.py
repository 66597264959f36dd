"""The command line: `python -m simgpu COMMAND`. Each command is a file in `simgpu/_cli`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simgpu._cli import fuzz, replay, run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simgpu", description="Simulated GPUs for PyTorch programs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (run, fuzz, replay):
        command.add_arguments(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(argv)
    status: int = options.start(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
