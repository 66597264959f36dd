"""`simgpu.as_cuda(n)`: code written for CUDA runs on simulated devices, and is not rewritten.

Within the block "cuda:1" is another name of simgpu:1. It is translated where a program names a
device, by the functions and methods that take one and, for all functions that make tensors, in
PyTorch's dispatcher. Where a program reads a device, it is shown as "cuda:1". The functions of
`torch.cuda` are those of `torch.simgpu`. All of it stands in the tables of this folder and is
undone at the end of the block.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import ModuleType

import torch

from simgpu._backend import devices, dynamo
from simgpu._backend.device_block import DeviceBlock
from simgpu._cuda import (
    autocast,
    build,
    c_functions,
    compiled_code,
    default_types,
    factories,
    graphs,
    process_groups,
    profilers_and_backends,
    registered_kernels,
    renaming,
    runtime_library,
    scripting,
    storages_and_streams,
    tensors,
    torch_cuda,
)
from simgpu._models.gpus import Names
from simgpu._patches import Patches
from simgpu.errors import RealCudaError


def as_cuda(
    count: int,
    *,
    memory: devices.Memory = None,
    model: Names = None,
    rng: str = "cuda",
    force: bool = False,
) -> DeviceBlock:
    """Have `count` fresh simulated GPUs that go by the name of CUDA, within the block.

    Code written for CUDA runs unchanged: `torch.cuda`, `.cuda()`, `device="cuda:1"`,
    `tensor.device`, `torch.nn.DataParallel`, in all threads. Everything is undone on exit; tensors
    that outlive the block are simulated ones again.

    Args:
        count, memory, model, rng: as in `simgpu.devices`.
        force: also on a machine with real CUDA, whose GPUs are then out of reach.

    The block has the devices, ``cuda:0`` to ``cuda:{count - 1}``, as a list.

    Raises:
        RealCudaError: real GPUs are here, and `force` is not set.
        TypeError, ValueError, DevicesActiveError, BackendSlotTakenError, DeviceBlockError: as in
            `simgpu.devices`.
    """
    arguments = devices.describe_arguments(count, memory, model, rng)
    forced = ", force=True" if force else ""
    return DeviceBlock(
        f"simgpu.as_cuda({arguments}{forced})",
        f"simgpu.enable({arguments}, as_cuda=True{forced})",
        lambda ends: start(count, memory, model, rng, force, ends),
    )


def start(
    count: int, memory: devices.Memory, model: Names, rng: str, force: bool, ends: ExitStack
) -> list[torch.device]:
    """Make fresh devices that go by the name of CUDA until `ends` is closed."""
    _check_no_cuda(force)
    simulated = devices.start(count, memory, model, rng, ends)
    ends.callback(_install().undo)
    return [torch.device("cuda", device.index) for device in simulated]


def start_process(force: bool = False) -> None:
    """Let the devices that the process has go by the name of CUDA, until it ends."""
    if not renaming.is_on():
        _check_no_cuda(force)
        _for_ever.append(_install())


# Patches that stay for the whole process: without a reference, the library of operators that they
# undo would be deleted, and its kernels with it.
_for_ever: list[Patches] = []

# The tables, in the order in which they are put in place; they are undone from the last to the
# first. `compiled_code` comes before `renaming`, since it may ask torch.cuda about real GPUs, and
# `renaming` before all others, since nothing is translated before "cuda" is a name of simulated
# devices; `scripting` comes last, since it looks at what the others have replaced. No other table
# depends on another one; within `tensors` and `torch_cuda`, rows do.
FILES: tuple[ModuleType, ...] = (
    compiled_code,
    renaming,
    tensors,
    storages_and_streams,
    autocast,
    default_types,
    build,
    c_functions,
    runtime_library,
    graphs,
    torch_cuda,
    profilers_and_backends,
    process_groups,
    factories,
    registered_kernels,
    scripting,
)


def _check_no_cuda(force: bool) -> None:
    if not force and not renaming.is_on() and torch.cuda.is_available():
        raise RealCudaError(
            f"{torch.cuda.device_count()} real CUDA devices are here, and simulated ones would "
            "take their name: run the program as it is, or say force=True (--force in a command)"
        )


def _install() -> Patches:
    """Put all tables in place; returns what undoes them."""
    dynamo.skip_own_frames()  # of the modules that only this needs
    patches = Patches()
    try:
        for file in FILES:
            patches.apply(file.PATCHES)
    except BaseException:
        patches.undo()
        raise
    return patches
