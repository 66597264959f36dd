"""The command line: `simgpu COMMAND`, or `python -m simgpu COMMAND`.

The commands are in `simgpu/_cli`.

May import: `_cli`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simgpu._cli import fuzz, info, run

EXAMPLES = """examples:
  Run a CUDA program, unchanged, on 4 simulated GPUs:
    %(prog)s run --devices 4 train.py
  Run a test suite that was written for CUDA:
    pytest --as-cuda --device-count 4
  Search for inputs that break the hypothesis tests in a folder:
    %(prog)s fuzz --minutes 5 tests
"""


def parser() -> argparse.ArgumentParser:
    """Return the reader of the command line, with all commands."""
    prog = "python -m simgpu" if sys.argv[0].endswith("__main__.py") else "simgpu"
    root = argparse.ArgumentParser(
        prog=prog,
        description="Run and test PyTorch programs for several GPUs on a machine without GPUs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (run, fuzz, info):
        command.add_arguments(commands)
    for command_parser in commands.choices.values():
        command_parser.set_defaults(parser=command_parser)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    program: list[str] = []
    if words[:1] == ["run"]:
        words[1:], program = run.cut(words[1:])
    options, unknown = parser().parse_known_args(words)
    options.own, options.program = words[1:], program  # as they were written, to run it again
    if unknown:  # with the usage of the command, which the root's parser does not know
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    status: int = options.start(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
