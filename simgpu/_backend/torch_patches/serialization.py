"""Saving: tensors made of other tensors (sparse, nested) are written part by part, as on CUDA."""

from __future__ import annotations

from collections.abc import Callable

import torch

from simgpu._naming import DEVICE_TYPE

_has_storage: Callable[[torch.Tensor], bool] = torch._C._has_storage


def _is_written_by_its_parts(tensor: torch.Tensor) -> bool:
    """`torch._C._has_storage`, which decides how a tensor of an outside device is saved.

    Parts of a composite have storages, and are saved as on CUDA: devices are mapped when a file is
    loaded, whatever `map_location` is.
    """
    return _has_storage(tensor) or tensor.device.type == DEVICE_TYPE


def install() -> None:
    """Let composites be saved and loaded part by part."""
    torch._C._has_storage = _is_written_by_its_parts  # type: ignore[assignment]
