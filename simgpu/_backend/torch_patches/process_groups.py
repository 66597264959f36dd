"""Which backend of torch.distributed simulated devices have by default: gloo."""

from __future__ import annotations

from torch.distributed.distributed_c10d import Backend

from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Action, Patches, Row


def _enter(patches: Patches) -> None:
    Backend.default_device_backend_map.setdefault(DEVICE_TYPE, Backend.GLOO)
    for name in (Backend.GLOO, "fake"):
        devices = Backend.backend_capability.get(name)
        if devices is not None and DEVICE_TYPE not in devices:
            Backend.backend_capability[name] = [*devices, DEVICE_TYPE]


PATCHES: tuple[Row, ...] = (
    Action(
        "torch.distributed's tables of backends by device",
        run=_enter,
        why="`init_process_group` with gloo, or without a name, takes simulated devices too",
    ),
)
