"""Register "simgpu" with PyTorch, once per process: device type, guard, kernels, patches.

May import: `_backend/dynamo`, `_backend/torch_patches`, `_backend/device_module`, `_kernels`,
`_backend`, `_distributed`, `_memory`, `_native`, `_runtime`, `errors`, `_naming`, `torch`.
"""

from __future__ import annotations

import threading

import torch
from torch.utils import backend_registration

from simgpu._backend.guard import BackendHooks, DeviceGuard
from simgpu._naming import DEVICE_TYPE
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
    from simgpu._backend import device_module, dynamo, pinned_allocator
    from simgpu._backend import guard as backend_guard
    from simgpu._backend.torch_patches.apply_all import apply_all
    from simgpu._distributed import kernels as collectives
    from simgpu._kernels import autocast, registry
    from simgpu._memory import pinned
    from simgpu._native import constant_answers, guard_answers, reducer_timers, registered_guard
    from simgpu._runtime import instruments, processes, thread_state

    # First the device type: PyTorch takes its name in every call that follows.
    hooks, guard = BackendHooks(), DeviceGuard()
    backend_registration._setup_privateuseone_for_python_backend(
        rename=DEVICE_TYPE,
        backend_module=device_module,
        hook=hooks,
        device_guard=guard,
    )
    # Then what C++ asks of the two objects: each replaced function is tried out by a call of
    # PyTorch's own, which `torch_patches` replaces.
    tables = registered_guard.replace_vtables(guard, hooks)
    if tables is not None:
        backend_guard.let_guard_know(tables[0])
        key = guard_answers.install(tables[0])
        if key is not None:
            backend_guard.let_cpp_choose_accelerator(key)
            thread_state.announce_to(key.set)
        pinned_allocator.let_hooks_allocate(tables[1])
        constant_answers.install(*tables)
    # The kernels, before the attributes of torch that lead programs to them.
    _libraries.extend(registry.register())
    _libraries.extend(autocast.install())
    _libraries.append(collectives.register())
    reducer_timers.enter()
    pinned.install()
    apply_all()
    processes.install()
    backend_guard.let_cuda_be_accelerator()  # what was tried out above is about simulated devices
    # torch.compile finds what `torch.get_device_module` returned by the last part of its name.
    device_module.__name__ = f"torch.{DEVICE_TYPE}"
    # Last, since it marks the functions of all modules that have been imported by now.
    dynamo.skip_own_frames()
    instruments.added.append(dynamo.skip_own_frames)  # theirs may have been imported just now
