"""What this process says about its devices to NVML's clients here, and to other processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from simgpu._core import clock, hooks, world
from simgpu._cuda.nvml import run_folder
from simgpu._cuda.nvml.figures import Answer, Gpu, gpus_of
from simgpu._util.naming import RUN_FOLDER

# The folder of the run that the devices of this process belong to.
_folder: Path | None = None


def own_answer() -> Answer:
    """What this process uses: a device from its first allocation on.

    A forked child of a process that had used its devices uses none.
    """
    devices = [
        (each.number, each.placement().reserved, clock.current.utilization(each.index))
        for each in list(world.active_devices)
        if each.was_used
    ]
    return {"pid": os.getpid(), "name": sys.executable, "devices": devices}


def gpus() -> list[Gpu]:
    """The GPUs of the machine; none where there are no devices."""
    here = world.current_world()
    return [] if here is None else gpus_of(here.machine, _ask)


def _ask() -> list[Answer]:
    others = [] if _folder is None else run_folder.ask(_folder, but=os.getpid())
    return [own_answer(), *others]


class _FirstUse(hooks.Instrument):
    """Begins to answer other processes when this one, or a child that it forks, uses a device."""

    def before_allocate(self, device: torch.device, nbytes: int) -> None:
        hooks.remove(self)
        if _folder is not None:
            run_folder.answer_at_socket(_folder, own_answer)


def join_run() -> None:
    """Make this process one of the run that its environment names, if it names one."""
    global _folder
    folder = os.environ.get(RUN_FOLDER)
    if folder and os.path.isdir(folder):
        _folder = Path(folder)
        hooks.add(_FirstUse())
