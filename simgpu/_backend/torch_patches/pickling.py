"""Tensors in queues, pipes and arguments of spawned processes: refused, with the way out.

Every process has simulated devices of its own, and none can read another's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Action, Patches, Row
from simgpu.errors import UnsupportedError


def _refusing(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def reduce_unless_simulated(value: Any) -> Any:
        storage = getattr(value, "_untyped_storage", value)
        if storage.device.type == DEVICE_TYPE:
            raise UnsupportedError(
                f"a tensor on {storage.device} cannot be sent to another process, which has "
                "devices of its own: send tensor.cpu(), and move it to a device there"
            )
        return reduce(value)

    return reduce_unless_simulated


def _register_refusals(_: Patches) -> None:
    reducers: dict[type, Callable[[Any], Any]] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    ours = (torch.Tensor, torch.storage.TypedStorage, torch.UntypedStorage)
    for kind, reduce in list(reducers.items()):
        if issubclass(kind, ours) and reduce.__module__ == reductions.__name__:
            ForkingPickler.register(kind, _refusing(reduce))


PATCHES: tuple[Row, ...] = (
    Action(
        "`multiprocessing.reduction.ForkingPickler.register`: the reducers of tensors, parameters "
        "and storages",
        run=_register_refusals,
        why="what lies on a simulated device cannot be sent to another process, which is told",
    ),
)
