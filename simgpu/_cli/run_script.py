"""What `simgpu run` does: makes the devices of this process, and runs a script in it."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import runpy
import sys
import warnings
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ScriptOptions:
    """What the command line of `simgpu run` says."""

    path: str
    arguments: tuple[str, ...]
    devices: int
    as_cuda: bool
    force: bool
    """Also where real CUDA is."""
    replace_data_parallel: bool
    trace: str | None
    summary: bool


def make_devices(options: ScriptOptions) -> str | None:
    """Make the devices of this process and of those it starts; returns why not, where refused."""
    # As in a child process that the script starts: its workers have the devices too.
    os.environ["SIMGPU_DEVICE_COUNT"] = str(options.devices)
    os.environ.pop("SIMGPU_AS_CUDA", None)
    # PyTorch's own remark on an environment without NumPy: not about the script, which needs none.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    import torch  # noqa: F401  # makes the devices, by the variable

    from simgpu._startup import process_devices

    process_devices.start_process_devices()
    if options.as_cuda:
        from simgpu._cuda import as_cuda
        from simgpu.errors import RealCudaError

        try:
            as_cuda.start_process(options.force)
        except RealCudaError as error:
            return str(error)
        os.environ["SIMGPU_AS_CUDA"] = "force" if options.force else "1"
    return None


def run_script(options: ScriptOptions) -> None:
    """Run the script as `python SCRIPT` does, with the devices that were made before."""
    if options.replace_data_parallel:
        _replace_data_parallel()
    sys.argv = [options.path, *options.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(options.path))
    _watch_until_exit(options.trace, options.summary)
    runpy.run_path(options.path, run_name="__main__")


def _replace_data_parallel() -> None:
    """Let the names of PyTorch's DataParallel mean the one of the package `dataparallel`.

    Looked up only here and only when asked for: simgpu does without that package.
    """
    nn: Any = importlib.import_module("torch.nn")
    ours = importlib.import_module("dataparallel")
    for module in (nn, nn.parallel):
        module.DataParallel = ours.DataParallel
    nn.parallel.data_parallel = ours.data_parallel


def _watch_until_exit(path: str | None, summary: bool) -> None:
    """Watch the devices for `--trace` and `--summary`, which are written when the process ends.

    That is when its threads have ended, also those that the script did not wait for, and the exit
    handlers of the script have run; also where it ended in an error.
    """
    if path is None and not summary:
        return
    from simgpu._profiling.watch import watch

    watching = watch(path, sys.stderr if summary else None)
    watching.__enter__()
    atexit.register(_end, watching, os.getpid())


def _end(watching: contextlib.AbstractContextManager[None], process: int) -> None:
    if os.getpid() == process:  # and not a child that it forked
        watching.__exit__(None, None, None)
