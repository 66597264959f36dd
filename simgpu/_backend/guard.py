"""`DeviceGuard` and `BackendHooks` (a PrivateUse1Hooks): what PyTorch's C++ asks about a device.

Both are classes of `torch._C._acc` that are meant to be derived from in Python, with few questions
that Python can answer. The current device is not among them, so `let_guard_know` puts a function
into the guard's table of virtual functions.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from simgpu._native import accelerator_choice, guard_answers
from simgpu._native.callbacks import GET_DEVICE, device_answer
from simgpu._native.pending_errors import raise_pending_error
from simgpu._native.virtual_tables import Table
from simgpu._runtime import accelerators, instruments, thread_state, world
from simgpu._runtime.instruments import Instrument


def let_guard_know(guard: Table) -> None:
    """Let `getDevice` of the guard answer the calling thread's current device.

    With it, `.to("simgpu")` means that device. Two values are tried out through PyTorch; where it
    does not return them, the function is restored.
    """
    current_index: Any = getattr(torch._C, "_accelerator_getDeviceIndex", None)
    if current_index is None:
        return
    put_back = guard.replace(GET_DEVICE, device_answer(world.current_device_steps()))
    outer = world.current_device()
    try:
        for tried in (5, 3):
            world.set_unchecked_current_device(tried)
            if current_index() != tried:
                put_back()
                return
    finally:
        world.set_unchecked_current_device(outer)


def let_cpp_count_devices() -> None:
    """Let C++ know how many devices there are, once autograd's engine has been at work."""
    guard_answers.set_device_count(len(world.active_devices))


class _Devices(Instrument):
    """Lets C++ know whether there are simulated devices, which then are its accelerator."""

    def devices_created(self, _: Sequence[torch.device]) -> None:
        accelerator_choice.set_devices_exist(True)

    def devices_removed(self) -> None:
        accelerator_choice.set_devices_exist(False)


def let_cpp_choose_accelerator(key: guard_answers.ThreadKey) -> None:
    """On a build with CUDA, let simulated devices be C++'s accelerator only while there are some.

    Until `let_cuda_be_accelerator`, they are it in any case.
    """
    if not torch._C._has_cuda or not accelerator_choice.install(key, thread_state.ACCELERATOR):
        return
    accelerator_choice.set_devices_exist(True)
    accelerators.let_cuda_be_there()
    instruments.add(_Devices())


def let_cuda_be_accelerator() -> None:
    """Let CUDA be C++'s accelerator, if it is there, until there are simulated devices."""
    accelerator_choice.set_devices_exist(False)


PRIVATE_USE_1_TYPE: Any = torch._C._autograd.DeviceType.PrivateUse1


class _PutAside(threading.local):
    """Errors that were pending when the engine asked for the device type, oldest first.

    `torch_patches.autograd` raises them when the backward pass is over.
    """

    def __init__(self) -> None:
        self.errors: list[BaseException] = []


put_aside = _PutAside()


def device_type(_: object) -> Any:
    """`type_` of the guard: the device type that it is for.

    The engine asks this while it unwinds from an error, too. No Python function may be called with
    an error pending, so the error is taken out of the interpreter and kept in `put_aside`.
    """
    try:
        raise_pending_error()
    except BaseException as error:
        put_aside.errors.append(error)
    return PRIVATE_USE_1_TYPE


class BackendHooks(torch._C._acc.PrivateUse1Hooks):
    """What C++ asks about the device type as a whole (ATen/detail/PrivateUse1HooksInterface.h)."""

    def is_available(self) -> bool:
        return world.device_count() > 0

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class DeviceGuard(torch._C._acc.DeviceGuard):
    """What C++ asks to make a device current (c10/core/impl/DeviceGuardImplInterface.h).

    Its Python half says of which type the devices are, and nothing else: which device and which
    streams are current, `simgpu._runtime` knows.
    """

    type_ = device_type
