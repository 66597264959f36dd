"""`python -m simgpu run --devices N SCRIPT [ARGS...]`: run a script as if N GPUs were there.

`fuzz` and `replay` are in `_fuzz`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from simgpu import _fuzz, _run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simgpu", description="Simulated GPUs for PyTorch programs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _run.add_arguments(commands)
    _fuzz.add_arguments(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command in ("fuzz", "replay"):
        return _fuzz.fuzz(options) if options.command == "fuzz" else _fuzz.replay(options)
    return _run.run(options, parser, _replace_data_parallel)


def _replace_data_parallel() -> None:
    """Let the names of PyTorch's DataParallel mean the one of the package `dataparallel`.

    Looked up only here and only when asked for: simgpu does without that package.
    """
    nn: Any = importlib.import_module("torch.nn")
    ours = importlib.import_module("dataparallel")
    for module in (nn, nn.parallel):
        module.DataParallel = ours.DataParallel
    nn.parallel.data_parallel = ours.data_parallel


if __name__ == "__main__":
    sys.exit(main())
