"""Making "simgpu" a device type that PyTorch knows, once per process."""

from __future__ import annotations

import threading

import torch
from torch.utils import backend_registration

from simgpu._backend.guard import DeviceGuard, Hooks
from simgpu._naming import DEVICE_TYPE
from simgpu.errors import BackendSlotTakenError

_lock = threading.Lock()
_libraries: list[torch.library.Library] = []


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
        from simgpu._backend import device_module, dynamo, pinned_allocator
        from simgpu._backend import guard as backend_guard
        from simgpu._backend.torch_patches import (
            accelerator,
            autograd,
            collectives,
            dlpack_export,
            generators,
            pickling,
            serialization,
            storage_methods,
            stream_types,
            tensor_data,
            tensor_methods,
        )
        from simgpu._kernels import autocast, registry
        from simgpu._memory import pinned
        from simgpu._native import constant_answers, registered_guard
        from simgpu._runtime import processes

        hooks, guard = Hooks(), DeviceGuard()
        backend_registration._setup_privateuseone_for_python_backend(
            rename=DEVICE_TYPE,
            backend_module=device_module,
            hook=hooks,
            device_guard=guard,
        )
        tables = registered_guard.replace_vtables(guard, hooks)
        if tables is not None:
            backend_guard.let_guard_know(tables[0])
            pinned_allocator.let_hooks_allocate(tables[1])
            constant_answers.install(*tables)
        _libraries.extend(registry.register())
        _libraries.extend(autocast.install())
        autograd.install()
        tensor_data.install()
        accelerator.install()
        collectives.install()
        pinned.install()
        storage_methods.install()
        serialization.install()
        generators.install()
        stream_types.install()
        tensor_methods.install()
        dlpack_export.install()
        processes.install()
        pickling.install()
        dynamo.skip_own_frames()
