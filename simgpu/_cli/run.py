"""`python -m simgpu run`: a script, in this process, as if GPUs were there."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import runpy
import sys
import warnings
from typing import Any


def add_arguments(commands: Any) -> None:
    """Add the command and its options to the command line."""
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


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the script; returns the exit status unless the script itself ends the process."""
    if not 1 <= options.devices <= 64:
        parser.error(f"--devices must be from 1 to 64, got {options.devices}")
    if not os.path.isfile(options.script):
        parser.error(f"no such script: {options.script}")
    # As in a child process that the script starts: its workers have the devices too.
    os.environ["SIMGPU_DEVICE_COUNT"] = str(options.devices)
    os.environ.pop("SIMGPU_AS_CUDA", None)
    # PyTorch's own remark on an environment without NumPy: not about the script, which needs none.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch  # noqa: F401  # makes the devices, by the variable

    from simgpu._startup import process_devices

    process_devices.start_process_devices()
    if options.name == "cuda":
        from simgpu._cuda import as_cuda
        from simgpu.errors import RealCudaError

        try:
            as_cuda.start_process(options.force)
        except RealCudaError as error:
            parser.error(str(error))
        os.environ["SIMGPU_AS_CUDA"] = "force" if options.force else "1"
    if options.replace_data_parallel:
        _replace_data_parallel()
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    with _watched(options.trace, options.summary):
        runpy.run_path(options.script, run_name="__main__")
    return 0


def _replace_data_parallel() -> None:
    """Let the names of PyTorch's DataParallel mean the one of the package `dataparallel`.

    Looked up only here and only when asked for: simgpu does without that package.
    """
    nn: Any = importlib.import_module("torch.nn")
    ours = importlib.import_module("dataparallel")
    for module in (nn, nn.parallel):
        module.DataParallel = ours.DataParallel
    nn.parallel.data_parallel = ours.data_parallel


def _watched(path: str | None, summary: bool) -> contextlib.AbstractContextManager[Any]:
    """Watch the devices for `--trace` and `--summary`, also where the script ends in an error."""
    if path is None and not summary:
        return contextlib.nullcontext()
    from simgpu._profiling.watch import watch

    return watch(path, sys.stderr if summary else None)
