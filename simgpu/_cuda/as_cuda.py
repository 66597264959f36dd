"""`simgpu.as_cuda(n)`: code written for CUDA runs on simulated devices.

Nothing of a program is rewritten. While this is on, "cuda:1" is another name of simgpu:1:

- where a program asks for a device, the name is translated: by the methods that take one
  (`_cuda_names`), and for everything that makes tensors in PyTorch's dispatcher, which finds no
  kernels of CUDA and asks `_make_tensor`; so it holds for functions that were imported by name long
  before, and in every thread;
- where a program looks at a device, it is told the name that it knows (`_cuda_names`);
- the functions of `torch.cuda` are those of `torch.simgpu` (`_cuda_module`), and what surrounds
  them takes the settings of CUDA (`_cuda_tools`).

Operators between tensors are not touched, so they cost what they cost on simulated devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from simgpu._backend import devices as backend_devices
from simgpu._backend import dynamo
from simgpu._cuda import build, c_functions, renaming, surroundings, torch_cuda
from simgpu._cuda.factories import route_factories
from simgpu._patches import Patches
from simgpu.errors import RealCudaError


@contextmanager
def as_cuda(
    count: int, *, memory: int | str | Sequence[int | str] | None = None, force: bool = False
) -> Iterator[list[torch.device]]:
    """Have `count` fresh simulated GPUs that go by the name of CUDA, within the block.

    Code written for CUDA runs unchanged: `torch.cuda`, `.cuda()`, `device="cuda:1"`,
    `tensor.device`, `torch.nn.DataParallel`, in all threads. Everything is undone on exit; tensors
    that outlive the block are simulated ones again.

    Args:
        count, memory: as in `simgpu.devices`.
        force: also on a machine with real CUDA, whose GPUs are then out of reach.

    Yields the devices, ``cuda:0`` to ``cuda:{count - 1}``.

    Raises:
        RealCudaError: real GPUs are here, and `force` is not set.
        TypeError, ValueError, DevicesActiveError, BackendSlotTakenError: as in `simgpu.devices`.
    """
    _check_no_cuda(force)
    with backend_devices.devices(count, memory=memory) as devices:
        undo = _install()
        try:
            yield [torch.device("cuda", device.index) for device in devices]
        finally:
            undo()


def start_process(force: bool = False) -> None:
    """Let the devices that the process has go by the name of CUDA, until it ends."""
    if not renaming.is_on():
        _check_no_cuda(force)
        _for_ever.append(_install())


# What is in place for the whole process: a library of operators ends with the last who knows it.
_for_ever: list[Callable[[], None]] = []


def _check_no_cuda(force: bool) -> None:
    if not force and not renaming.is_on() and torch.cuda.is_available():
        raise RealCudaError(
            f"{torch.cuda.device_count()} real CUDA devices are here, and simulated ones would "
            "take their name: run the program as it is, or say force=True (--force in a command)"
        )


def _install() -> Callable[[], None]:
    """Put everything in place; returns what undoes it."""
    patches = Patches()
    covers = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def undo() -> None:
        covers._destroy()  # type: ignore[no-untyped-call]
        patches.undo()

    dynamo.skip_own_frames()  # of the modules that only this needs
    try:
        renaming.install(patches)
        build.install(patches)
        c_functions.install(patches)
        torch_cuda.install(patches)
        surroundings.install(patches)
        route_factories(covers)
    except BaseException:
        undo()
        raise
    return undo
