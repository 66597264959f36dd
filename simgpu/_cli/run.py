"""`simgpu run`: its arguments."""

from __future__ import annotations

import argparse
import os
from typing import Any

from simgpu._cli.run_script import ScriptOptions, make_devices, run_script


def add_arguments(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run a script in a process with simulated devices",
        description="Run a script, written for CUDA or not, on simulated GPUs.",
    )
    run.add_argument("--devices", type=int, default=1, metavar="N", help="1 to 64 (default 1)")
    run.add_argument(
        "--as",
        dest="name",
        choices=("cuda", "simgpu"),
        default="cuda",
        help="what the devices are called: cuda (default; the script may say simgpu too) or simgpu",
    )
    run.add_argument(
        "--force", action="store_true", help="also where real CUDA is, which is then out of reach"
    )
    run.add_argument(
        "--replace-data-parallel",
        action="store_true",
        help="let torch.nn.DataParallel be dataparallel.DataParallel",
    )
    run.add_argument(
        "--trace", metavar="FILE", help="write what ran where and when, for Perfetto or Chrome"
    )
    run.add_argument(
        "--summary",
        action="store_true",
        help="say on stderr, per device: kernels, bytes in and out, peak memory, its share of the "
        "work (bytes written by kernels) and of the batch (bytes that models were called with)",
    )
    run.add_argument("script", metavar="SCRIPT")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    run.set_defaults(start=start, parser=run)


def start(options: argparse.Namespace) -> int:
    """Check what the arguments name, and run the script."""
    if not 1 <= options.devices <= 64:
        options.parser.error(f"--devices must be from 1 to 64, got {options.devices}")
    if not os.path.isfile(options.script):
        options.parser.error(f"no such script: {options.script}")
    script = ScriptOptions(
        path=options.script,
        arguments=tuple(options.arguments),
        devices=options.devices,
        as_cuda=options.name == "cuda",
        force=options.force,
        replace_data_parallel=options.replace_data_parallel,
        trace=options.trace,
        summary=options.summary,
    )
    refusal = make_devices(script)
    if refusal is not None:
        options.parser.error(refusal)
    run_script(script)
    return 0
