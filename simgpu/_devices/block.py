"""Devices of a `with` block, of `simgpu.enable`, and of a whole process (SIMGPU_DEVICE_COUNT)."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import ModuleType, TracebackType
from typing import Any

import torch

from simgpu._backend import dynamo, install
from simgpu._config import options as config_options
from simgpu._config.gpus import Names
from simgpu._config.options import DeviceOptions, Memory
from simgpu._core import world
from simgpu._cuda import (
    compiled_code,
    extensions,
    graphs,
    process_groups,
    profiler,
    registered_kernels,
    renaming,
    scripting,
    tensors,
    torch_cuda,
    torch_modules,
    triton_driver,
)
from simgpu._cuda.nvml import library, process
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Patches
from simgpu.errors import DeviceBlockError, DevicesActiveError, RealCudaError


class DeviceBlock(contextlib.ContextDecorator):
    """Makes devices when it is entered and ends them when it is left; to be entered once.

    A set that is made without `with` ends where the program does not expect it, or is never made
    at all. So the repr is a hint, and a warning follows when it is dropped too early.

    Args:
        call: how the program made this object, such as "simgpu.devices(4)".
        enable: what does the same without a block, such as "simgpu.enable(4)".
        start: makes the devices, and hands over to the stack what ends them.
    """

    def __init__(
        self, call: str, enable: str, start: Callable[[ExitStack], list[torch.device]]
    ) -> None:
        self._call, self._enable, self._start = call, enable, start
        self._was_used = False
        self._ends: ExitStack | None = None  # while the block lasts

    def __enter__(self) -> list[torch.device]:
        if self._was_used:
            raise DeviceBlockError(
                f"this {self._call} was entered before, and each call makes one set of devices: "
                f"call {self._call} again"
            )
        self._was_used = True
        with ExitStack() as stack:
            devices = self._start(stack)
            self._ends = stack.pop_all()
        return devices

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ends, self._ends = self._ends, None
        if ends is None:
            raise DeviceBlockError(f"{self._call} was left, but is not entered")
        ends.close()

    def __call__(self, function: Callable[..., Any]) -> Any:
        """As a decorator: fresh devices for every call of the function."""
        self._was_used = True
        return super().__call__(function)

    def _recreate_cm(self) -> DeviceBlock:
        return DeviceBlock(self._call, self._enable, self._start)

    def __repr__(self) -> str:
        if self._ends is not None:
            return f"<{self._call}, entered>"
        if self._was_used:
            return f"<{self._call}, over>"
        return f"<{self._call}, not entered: {self._ways_out()}>"

    def _ways_out(self) -> str:
        return f"write `with {self._call}:`, or {self._enable} to have devices without a block"

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # an argument: the names of this module may be gone by then
            return
        if not self._was_used:
            text = f"{self._call} made no devices, since it was never entered: {self._ways_out()}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        elif self._ends is not None:
            self._ends.close()
            text = f"{self._call} was dropped, which ended its devices: {self._ways_out()}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def devices(
    count: int, *, memory: Memory = None, model: Names = None, rng: str = "cuda"
) -> DeviceBlock:
    """Make `count` simulated GPUs, which exist for the length of the `with` block.

    Args:
        count: 1 to 64.
        memory: of each device, in bytes or as a text such as "16GiB" or "512MiB"; a list has one
            entry per device. By default it is the model's memory. A full device raises
            torch.OutOfMemoryError.
        model: the GPU that each device reports, such as "A100" or "H100 SXM"; a list has one entry
            per device. It sets name, compute capability, multiprocessors, memory and random
            numbers. Without a model a device has 16 GiB and the multiprocessors of an H100.
        rng: "cuda" draws the numbers of CUDA's generator; "host" draws those of the CPU, different
            ones on each device.

    The block gives a list of the devices, ``simgpu:0`` to ``simgpu:{count - 1}``. Each block begins
    with device 0, no memory allocated, and random numbers seeded by ``torch.initial_seed()``.
    `simgpu.enable` does the same without a block.

    Raises:
        TypeError, ValueError: an argument has a wrong type, or a value that is not allowed.
        DevicesActiveError: there are simulated devices already; blocks do not nest.
        BackendSlotTakenError: another package uses PyTorch's slot for outside devices.
        DeviceBlockError: the returned object is entered a second time.
    """
    arguments = _described(count, memory, model, rng)
    return DeviceBlock(
        f"simgpu.devices({arguments})",
        f"simgpu.enable({arguments})",
        lambda ends: _start(DeviceOptions.of(count, memory, model, rng), ends),
    )


def _described(count: int, memory: Memory, model: Names, rng: str, **flags: bool) -> str:
    """The arguments as a program writes them."""
    given = {"memory": memory, "model": model, "rng": None if rng == "cuda" else rng}
    named = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    return ", ".join([repr(count), *named, *(f"{name}=True" for name in flags if flags[name])])


def _start(
    options: DeviceOptions, ends: ExitStack, as_cuda: bool = False, force: bool = False
) -> list[torch.device]:
    """Make fresh devices, which last until `ends` is closed."""
    if as_cuda:
        _check_no_cuda(force)
    install.install()
    ends.callback(world.leave, world.enter(options))
    if as_cuda:
        ends.callback(_rename(force).undo)
    name = "cuda" if as_cuda else DEVICE_TYPE
    return [torch.device(name, index) for index in range(world.device_count())]


# Within `simgpu.as_cuda(n)`, "cuda:1" is another name of simgpu:1. The patches of `_cuda` translate
# it where a program names a device, and in PyTorch's dispatcher for all functions that make
# tensors; where a program reads a device, they show it as "cuda:1".


def as_cuda(
    count: int,
    *,
    memory: Memory = None,
    model: Names = None,
    rng: str = "cuda",
    force: bool = False,
) -> DeviceBlock:
    """Make `count` simulated GPUs that answer to the name cuda, for the length of the block.

    Code written for CUDA runs unedited in all threads: `torch.cuda`, `.cuda()`, `device="cuda:1"`,
    `tensor.device`, `torch.nn.DataParallel`. The end of the block undoes it; tensors that outlive
    the block are on `simgpu` again.

    Args:
        count: how many devices, 1 to 64.
        memory: as in `simgpu.devices`.
        model: as in `simgpu.devices`.
        rng: as in `simgpu.devices`.
        force: also on a machine with real CUDA, whose GPUs are then out of reach.

    The block gives a list of the devices, ``cuda:0`` to ``cuda:{count - 1}``.

    Raises:
        RealCudaError: the machine has GPUs, and `force` is not set.
        TypeError, ValueError, DevicesActiveError, BackendSlotTakenError, DeviceBlockError: as in
            `simgpu.devices`.
    """
    return DeviceBlock(
        f"simgpu.as_cuda({_described(count, memory, model, rng, force=force)})",
        f"simgpu.enable({_described(count, memory, model, rng, as_cuda=True, force=force)})",
        lambda ends: _start(DeviceOptions.of(count, memory, model, rng), ends, True, force),
    )


def start_process(force: bool = False) -> None:
    """Use the devices of the process as CUDA, until it ends."""
    if not renaming.is_on():
        _check_no_cuda(force)
        _for_ever.append(_rename(force))


# Patches that stay for the whole process: without a reference, the library of operators that they
# undo would be deleted, and its kernels with it.
_for_ever: list[Patches] = []

# The tables, in the order in which they are put in place; they are undone from the last to the
# first. `compiled_code` comes before `renaming`, since it may ask torch.cuda about real GPUs, and
# `renaming` before all others, since nothing is translated before "cuda" is a name of simulated
# devices; `graphs` before `torch_cuda`, which copies the classes that torch.cuda holds by another
# name; `scripting` comes last, since it looks at what the others have replaced. Other tables do not
# depend on each other; within `tensors` and `torch_cuda`, rows do.
FILES: tuple[ModuleType, ...] = (
    compiled_code,
    renaming,
    tensors,
    torch_modules,
    graphs,
    torch_cuda,
    process_groups,
    profiler,
    registered_kernels,
    library,
    extensions,
    triton_driver,
    scripting,
)


def _check_no_cuda(force: bool) -> None:
    if not force and not renaming.is_on() and torch.cuda.is_available():
        raise RealCudaError(
            f"{torch.cuda.device_count()} real CUDA devices are here, and simulated ones would "
            "take their name: run the program as it is, or pass force=True (--force in a command)"
        )


def _rename(force: bool) -> Patches:
    """Put all tables in place; returns what undoes them."""
    library.forced = force
    dynamo.skip_own_frames()  # of the modules that only this needs
    patches = Patches()
    try:
        for file in FILES:
            patches.apply(file.PATCHES)
    except BaseException:
        patches.undo()
        raise
    return patches


def start_process_devices(said_by: Mapping[str, str] | None = None) -> None:
    """Make the devices that SIMGPU_DEVICE_COUNT asks for, for the rest of the process.

    Does nothing where they have been made already, as `import torch` does by itself wherever
    simgpu is installed. SIMGPU_DEVICE_MEMORY is the memory of each, as in `simgpu.devices`, with
    commas between the sizes of several, and SIMGPU_MODEL which GPU each is, likewise; SIMGPU_RNG
    chooses their random number generator. With SIMGPU_AS_CUDA, they are used as CUDA.

    Raises ValueError where a variable makes no sense; its text begins with the variable, or with
    the option of a command that has set it: by argument of `simgpu.devices`, `said_by` has those.
    """
    count = config_options.device_count()
    if count is None or world.current_world() is not None:
        return
    asked = DeviceOptions.of_environment(count, said_by or {})
    named = config_options.as_cuda()
    install.install()
    entered = world.enter(asked)
    entered.hint = (
        f"{config_options.COUNT} or `simgpu run` made them for the whole process: use these, or "
        "start it without"
    )
    entered.more = f"; {config_options.COUNT}, or --devices of `simgpu run`, is their number"
    if named:
        start_process(force=named == "force")
    process.join_run()


# `simgpu.enable(n)` and `simgpu.disable()`: devices without a `with` block, for a notebook.

_lock = threading.Lock()
# How the devices were made, and what ends them; None while there are none of this file.
_enabled: tuple[str, ExitStack] | None = None


def enable(
    count: int,
    *,
    memory: Memory = None,
    model: Names = None,
    rng: str = "cuda",
    as_cuda: bool = False,
    force: bool = False,
) -> list[torch.device]:
    """Make `count` simulated GPUs, which exist until `simgpu.disable()`.

    For a notebook or the interactive interpreter. In a program, `with simgpu.devices(n)` also ends
    its devices after an error.

    Args:
        count: how many devices, 1 to 64.
        memory: as in `simgpu.devices`.
        model: as in `simgpu.devices`.
        rng: as in `simgpu.devices`.
        as_cuda: the devices answer to the name cuda, as in `simgpu.as_cuda`.
        force: as in `simgpu.as_cuda`.

    Returns the devices, ``simgpu:0`` (or ``cuda:0``) and so on.

    Raises:
        DevicesActiveError: there are simulated devices already.
        ValueError: `force` without `as_cuda`.
        TypeError, ValueError, BackendSlotTakenError, RealCudaError: as in `simgpu.as_cuda`.
    """
    global _enabled
    if force and not as_cuda:
        raise ValueError("force=True needs as_cuda=True: it takes the name of real CUDA devices")
    with _lock:
        if _enabled is not None:
            raise DevicesActiveError(
                f"{_enabled[0]} has made devices already: call simgpu.disable() first"
            )
        arguments = _described(count, memory, model, rng, as_cuda=as_cuda, force=force)
        with ExitStack() as ends:
            made = _start(DeviceOptions.of(count, memory, model, rng), ends, as_cuda, force)
            _enabled = f"simgpu.enable({arguments})", ends.pop_all()
        return made


def disable() -> None:
    """End the devices of `simgpu.enable`; their tensors keep their values and can be moved to host.

    Raises DeviceBlockError where there are none of `simgpu.enable`.
    """
    global _enabled
    with _lock:
        if _enabled is None:
            raise DeviceBlockError(
                "simgpu.disable() has nothing to end: it ends the devices of simgpu.enable(n), "
                "while those of `with simgpu.devices(n)` end with their block and those of "
                "SIMGPU_DEVICE_COUNT with the process"
            )
        (_, ends), _enabled = _enabled, None
        ends.close()
