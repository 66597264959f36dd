"""`python -m simgpu run --devices N SCRIPT [ARGS...]`: run a script as if N GPUs were there.

`fuzz` and `replay` are in `_fuzz`.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import warnings
from collections.abc import Sequence

from simgpu import _fuzz


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simgpu", description="Simulated GPUs for PyTorch programs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a script in a process with simulated devices")
    run.add_argument("--devices", type=int, default=1, metavar="N", help="1 to 64 (default 1)")
    run.add_argument("script", metavar="SCRIPT")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    _fuzz.add_arguments(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.command in ("fuzz", "replay"):
        return _fuzz.fuzz(options) if options.command == "fuzz" else _fuzz.replay(options)
    if not 1 <= options.devices <= 64:
        parser.error(f"--devices must be from 1 to 64, got {options.devices}")
    if not os.path.isfile(options.script):
        parser.error(f"no such script: {options.script}")
    # As in a child process that the script starts: its workers have the devices too.
    os.environ["SIMGPU_DEVICE_COUNT"] = str(options.devices)
    # PyTorch's own remark on an environment without NumPy: not about the script, which needs none.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch  # noqa: F401  # makes the devices, by the variable

    from simgpu import _api

    _api.start_process_devices()
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    runpy.run_path(options.script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
