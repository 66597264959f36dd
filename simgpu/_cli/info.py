"""`simgpu info`: prints versions, GPUs, devices, native tricks and the pytest plugin.

And `simgpu smi`: the simulated GPUs of programs that run now, as nvidia-smi shows them.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("pytest", "pytest-xdist", "hypothesis", "numpy", "jinja2", "tqdm")


def description() -> Iterator[str]:
    """Yield the lines, some of which take a while to find out."""
    from simgpu._config import options

    given = options.clear_variables()  # or importing torch makes devices, which hide the GPUs
    folder = Path(__file__).parents[1]
    yield _line("simgpu", f"{_version('simgpu')} in {folder}")
    yield _line("python", f"{platform.python_version()} ({sys.executable})")
    yield _line("system", platform.platform())
    variables = ", ".join(f"{name}={value}" for name, value in given.items())
    yield _line("variables", variables or "none")
    known = (*options.NAMES, *options.SETTINGS)
    for name in options.unknown_variables():
        yield _line("unknown", f"{name}={os.environ[name]} (known: {', '.join(known)})")
    try:
        import torch
    except Exception as error:  # whatever an installation that is broken raises
        yield _line("torch", f"cannot be imported: {type(error).__name__}: {error}")
        return
    cuda = torch.version.cuda or torch.version.hip
    yield _line("torch", f"{torch.__version__} ({f'CUDA {cuda}' if cuda else 'no CUDA'})")
    for package in PACKAGES:
        yield _line(package, _version(package))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a driver that is too old: then there are none
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(map(torch.cuda.get_device_name, range(count)))
    yield _line("GPUs", f"{count} ({names})" if names else "torch finds none")
    yield from _devices()
    yield _line("pytest plugin", _plugin())


def _line(name: str, value: str) -> str:
    return f"{name + ':':<16}{value}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> Iterator[str]:
    """Try simulated devices, and list which native tricks work with them."""
    from simgpu._config.gpus import models
    from simgpu._config.options import RNGS
    from simgpu._devices.block import devices
    from simgpu._native import status
    from simgpu.errors import SimGPUError

    try:
        with devices(2) as made:
            import torch

            total = torch.ones(2, device=made[1]).sum().item()
            yield _line("devices", f"can be made: {made[0]}, {made[1]}; 1 + 1 = {total:.0f}")
            yield _line("models", ", ".join(models()))
            yield _line("random numbers", f"rng={' or '.join(RNGS)}")
            active = status.active_tricks()
    except SimGPUError as error:
        yield _line("devices", f"cannot be made: {error}")
        return
    for trick in status.TRICKS:
        state = "active" if active[trick.name] else f"NOT ACTIVE: {trick.otherwise}"
        yield f"  {trick.name + ':':<33} {state}"


def _plugin() -> str:
    """Whether pytest will load the plugin, and what its tests will get."""
    names = {entry.name for entry in importlib.metadata.entry_points(group="pytest11")}
    loaded = "installed" if "simgpu" in names else "NOT INSTALLED (pip install simgpu)"
    try:
        from simgpu._pytest.options import SessionOptions
        from simgpu._pytest.pools import choose_pool
    except ImportError:
        return f"{loaded}; pytest is not installed"
    return f"{loaded}; a session without options has {choose_pool(SessionOptions()).describe()}"


def add_arguments(commands: Any) -> None:
    info = commands.add_parser(
        "info",
        help="print versions and what works on this machine, for a bug report",
        description="Print versions and what works on this machine. Paste the output into a "
        "bug report.",
    )
    info.set_defaults(start=start)

    smi_command = commands.add_parser(
        "smi",
        help="show the simulated GPUs of running programs",
        description="Show the GPUs of each `simgpu run` of this user that runs now, with the "
        "memory and the processes of this moment, as nvidia-smi does. The exit status is 1 if "
        "none runs.",
    )
    smi_command.set_defaults(start=start_smi)


def start_smi(options: argparse.Namespace) -> int:
    """Print a table for each run."""
    from simgpu._cuda.nvml import run_folder, smi

    found = False
    for folder, about in run_folder.running():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            table = smi.table(run_folder.gpus(folder))
            print(f"simgpu run {about['program']} (process {about['pid']})\n{table}")
            found = True
    if not found:
        print("simgpu smi: no `simgpu run` of this user is running", file=sys.stderr)
    return 0 if found else 1


def start(options: argparse.Namespace) -> int:
    try:
        for line in description():
            print(line, flush=True)
    except BrokenPipeError:  # `simgpu info | head -3`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the exit reports it
    return 0
