"""Making "simgpu" a device type that PyTorch knows, once per process."""

from __future__ import annotations

import threading

import torch
from torch.utils import backend_registration

from simgpu import _world
from simgpu._autograd import device_type
from simgpu._relabel import DEVICE_TYPE
from simgpu.errors import BackendSlotTakenError

_lock = threading.Lock()
_libraries: list[torch.library.Library] = []


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    """Answers PyTorch's questions about the backend as a whole."""

    def is_available(self) -> bool:
        return _world.device_count() > 0

    def has_primary_context(self, dev_id: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _DeviceGuard(torch._C._acc.DeviceGuard):
    """Names the device type; current devices and streams are kept in `_world` and `_streams`."""

    type_ = device_type


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
        from simgpu import (
            _accelerator,
            _autocast,
            _autograd,
            _collectives,
            _composite,
            _data,
            _frames,
            _generators,
            _legacy,
            _life,
            _native_answers,
            _pinned,
            _register,
            _sending,
            _storage,
            _streams,
            _virtual,
            device_module,
        )

        hooks, guard = _Hooks(), _DeviceGuard()
        backend_registration._setup_privateuseone_for_python_backend(
            rename=DEVICE_TYPE,
            backend_module=device_module,
            hook=hooks,
            device_guard=guard,
        )
        tables = _virtual.tables(guard, hooks)
        if tables is not None:
            _accelerator.let_guard_know(tables[0])
            _pinned.let_hooks_allocate(tables[1])
            _native_answers.install(*tables)
        _libraries.extend(_register.register())
        _libraries.extend(_autocast.install())
        _autograd.install()
        _data.install()
        _accelerator.install()
        _collectives.install()
        _pinned.install()
        _storage.install()
        _composite.install()
        _generators.install()
        _streams.install()
        _legacy.install()
        _life.install()
        _sending.install()
        _frames.leave_alone()
