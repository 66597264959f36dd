"""What C++ asks of a backend: its hooks, and the guard that knows the current device."""

from __future__ import annotations

import threading
from typing import Any

import torch

from simgpu._native.callbacks import GET_DEVICE, device_answer
from simgpu._native.pending_errors import raise_pending_error
from simgpu._native.virtual_tables import Table
from simgpu._runtime import world


def let_guard_know(guard: Table) -> bool:
    """Let C++ know the current device; returns whether that was possible."""
    current_index: Any = getattr(torch._C, "_accelerator_getDeviceIndex", None)
    if current_index is None:
        return False
    put_back = guard.replace(GET_DEVICE, device_answer(world.current_device_steps()))
    outer = world.current_device()
    try:
        for tried in (5, 3):
            world._per_thread.current_device = tried
            if current_index() != tried:
                put_back()
                return False
    finally:
        world._per_thread.current_device = outer
    return True


PRIVATE_USE_1_TYPE: Any = torch._C._autograd.DeviceType.PrivateUse1


class _PutAside(threading.local):
    """Errors that were pending when the engine asked for the device type, oldest first."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []


put_aside = _PutAside()


def device_type(_: object) -> Any:
    """The device type that the guard stands for; `type_` of the guard."""
    try:
        raise_pending_error()
    except BaseException as error:
        put_aside.errors.append(error)
    return PRIVATE_USE_1_TYPE


class Hooks(torch._C._acc.PrivateUse1Hooks):
    """Answers PyTorch's questions about the backend as a whole."""

    def is_available(self) -> bool:
        return world.device_count() > 0

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class DeviceGuard(torch._C._acc.DeviceGuard):
    """Names the device type; current devices and streams are kept in `_world` and `_streams`."""

    type_ = device_type
