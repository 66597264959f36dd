"""The device guard and the hooks of the backend: what PyTorch's C++ asks about devices.

Both are classes of `torch._C._acc` that are meant to be derived from in Python, with few questions
that Python can answer. The current device is not among them, so `let_guard_know` puts a function
into the guard's table of virtual functions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from simgpu._core import hooks as core_hooks
from simgpu._core import world
from simgpu._core.hooks import WhileDevicesExist
from simgpu._core.launch import HOST_KEYS
from simgpu._core.operators import empty
from simgpu._native import accelerator_choice, guard_code
from simgpu._native.python_objects import raise_pending_error
from simgpu._native.vtables import (
    GET_DEVICE,
    Table,
    address_answer,
    allocator,
    device_answer,
)
from simgpu._util import thread_rows


def let_guard_know(guard: Table) -> None:
    """Make `getDevice` of the guard answer the calling thread's current device.

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


def let_cpp_choose_accelerator(key: guard_code.ThreadKey) -> None:
    """On a build with CUDA, make simulated devices C++'s accelerator only while there are some.

    Until `install` is done, they are it in any case.
    """
    if not torch._C._has_cuda or not accelerator_choice.install(key, thread_rows.ACCELERATOR):
        return
    accelerator_choice.set_devices_exist(True)
    world.let_cuda_be_there()
    core_hooks.add(WhileDevicesExist(_be_accelerator))


def _be_accelerator() -> Callable[[], None]:
    accelerator_choice.set_devices_exist(True)
    return partial(accelerator_choice.set_devices_exist, False)


PRIVATE_USE_1_TYPE: Any = torch._C._autograd.DeviceType.PrivateUse1


class _DeferredErrors(threading.local):
    """Errors that were pending when the engine asked for the device type, oldest first.

    `torch_patches.autograd` raises them when the backward pass is over.
    """

    def __init__(self) -> None:
        self.errors: list[BaseException] = []


deferred_errors = _DeferredErrors()


def device_type(_: object) -> Any:
    """`type_` of the guard: the device type that it is for.

    The engine asks this while it unwinds from an error, too. No Python function may be called with
    an error pending, so the error is taken out of the interpreter and kept in `deferred_errors`.
    """
    try:
        raise_pending_error()
    except BaseException as error:
        deferred_errors.errors.append(error)
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
    streams are current, `simgpu._core` knows.
    """

    type_ = device_type


# `torch.empty(..., pin_memory=True)`: the allocator of pinned memory that C++ asks the hooks for.
#
# In releases and builds where the hooks' table of virtual functions cannot be replaced, or none of
# its functions turns out to be the one that returns the allocator, such calls raise as before.


def let_hooks_allocate(hooks: Table) -> None:
    """Make tensors be made in pinned memory while there are devices, if they can.

    Which virtual function returns the allocator is found by trying: each in turn is made to return
    ours, a pinned tensor is asked for, and its storage shows whose memory it got. Where CUDA is
    there, C++ takes pinned memory from CUDA without asking, and would start it.
    """
    if torch.cuda.is_available() or not allocator.copy():
        return
    give = address_answer(allocator.address)
    options: dict[str, Any] = {"device": torch.device("cpu"), "pin_memory": True}
    for position in range(2, 16):  # the first two destroy the object
        put_back = hooks.replace(position, give)
        try:
            made = empty(HOST_KEYS, (1,), **options)
        except RuntimeError:  # the stock function was asked, and has no allocator
            continue
        finally:
            put_back()
        if allocator.find_in(made.untyped_storage()):
            core_hooks.add(WhileDevicesExist(partial(hooks.replace, position, give)))
        return
