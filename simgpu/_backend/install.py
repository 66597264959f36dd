"""Register "simgpu" with PyTorch, once per process: device type, guard, kernels, patches.

May import: `_backend/dynamo`, `_backend/torch_patches`, `_backend/namespace`, `_ops`, `_backend`,
`_distributed`, `_memory`, `_core`, `_native`, `errors`, `_util`, `torch`.
"""

from __future__ import annotations

import importlib
import pkgutil
import threading
from types import ModuleType

import torch
from torch.utils import backend_registration

from simgpu._backend.guard import BackendHooks, DeviceGuard
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Patches
from simgpu.errors import BackendSlotTakenError

_lock = threading.Lock()
_libraries: list[torch.library.Library] = []  # kernels are registered for as long as these live

# What `_setup_privateuseone_for_python_backend` adds or changes itself; older releases do less.
ADDED_BY_PYTORCH = (
    f"torch.{DEVICE_TYPE}",
    f"torch.Tensor.{DEVICE_TYPE}",
    f"torch.Tensor.is_{DEVICE_TYPE}",
    f"torch.nn.Module.{DEVICE_TYPE}",
    f"torch.nn.utils.rnn.PackedSequence.{DEVICE_TYPE}",
    f"torch.nn.utils.rnn.PackedSequence.is_{DEVICE_TYPE}",
    "torch.utils.backend_registration._privateuse1_backend_name",
    *(
        f"{enumeration}.{name}"
        for enumeration in ("torch._C._autograd.DeviceType", "torch._C._profiler.ProfilerActivity")
        for name in (DEVICE_TYPE.upper(), "__repr__", "__str__", "name")
    ),
)


def install() -> None:
    """Register the device type, its module `torch.simgpu` and its kernels; later calls do nothing.

    Raises BackendSlotTakenError where another package has the slot.
    """
    with _lock:
        if _libraries:
            return
        taken = torch._C._get_privateuse1_backend_name()
        if taken != "privateuseone":
            raise BackendSlotTakenError(
                f"PyTorch has one slot for outside devices, and this process uses it for {taken!r}:"
                f" {DEVICE_TYPE} devices need a process of their own"
            )
        _install_in_order()


def _install_in_order() -> None:
    """Register everything; each step needs the ones before it, for the reason that it gives.

    The imports are here because many of these files keep functions of torch to call them later:
    those have to be what the program finds when it makes its first devices.
    """
    from simgpu._backend import dynamo, namespace
    from simgpu._backend import guard as backend_guard
    from simgpu._core import hooks as core_hooks
    from simgpu._core import world
    from simgpu._distributed import c10d_kernels
    from simgpu._memory import pinned
    from simgpu._native import accelerator_choice, guard_code, vtables
    from simgpu._ops import autocast, registry
    from simgpu._util import thread_rows

    # First the device type: PyTorch takes its name in every call that follows.
    hooks, guard = BackendHooks(), DeviceGuard()
    backend_registration._setup_privateuseone_for_python_backend(
        rename=DEVICE_TYPE,
        backend_module=namespace,
        hook=hooks,
        device_guard=guard,
    )
    # Then what C++ asks of the two objects: each replaced function is tried out by a call of
    # PyTorch's own, which `torch_patches` replaces.
    tables = vtables.replace_vtables(guard, hooks)
    if tables is not None:
        backend_guard.let_guard_know(tables[0])
        key = guard_code.install(*tables)
        if key is not None:
            backend_guard.let_cpp_choose_accelerator(key)
            thread_rows.announce_to(key.set)
        backend_guard.let_hooks_allocate(tables[1])
    # The kernels, before the attributes of torch that lead programs to them.
    _libraries.extend(registry.register())
    _libraries.extend(autocast.install())
    _libraries.append(c10d_kernels.register())
    pinned.install()
    for file in torch_patches():
        Patches().apply(file.PATCHES)
    world.watch_forks()
    accelerator_choice.set_devices_exist(False)  # what was tried out above is about simulated ones
    # torch.compile finds what `torch.get_device_module` returned by the last part of its name.
    namespace.__name__ = f"torch.{DEVICE_TYPE}"
    # Last, since it marks the functions of all modules that have been imported by now.
    dynamo.skip_own_frames()
    core_hooks.added.append(dynamo.skip_own_frames)  # theirs may have been imported just now


def torch_patches() -> tuple[ModuleType, ...]:
    """The files whose tables of replaced attributes are put in place for good.

    No attribute is in two tables, and every file keeps the stock attributes that it calls. So no
    table depends on another one, and their order is that of the names of the files.
    """
    from simgpu._backend import generators
    from simgpu._backend import torch_patches as folder

    names = (f"{folder.__name__}.{found.name}" for found in pkgutil.iter_modules(folder.__path__))
    files = (generators, *map(importlib.import_module, names))
    return tuple(file for file in files if hasattr(file, "PATCHES"))
