"""`python -m simgpu run --devices N SCRIPT [ARGS...]`: run a script as if N GPUs were there.

`fuzz` and `replay` look for examples that break a property, and run them again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simgpu._cli import fuzz, run
from simgpu._fuzz import campaign


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simgpu", description="Simulated GPUs for PyTorch programs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run.add_arguments(commands)
    fuzz.add_arguments(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command in ("fuzz", "replay"):
        return campaign.fuzz(options) if options.command == "fuzz" else campaign.replay(options)
    return run.run(options, parser)


if __name__ == "__main__":
    sys.exit(main())
