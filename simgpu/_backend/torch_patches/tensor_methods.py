"""`Tensor.new`, `Tensor.new_tensor` and the storage methods that carry the device type's name."""

from __future__ import annotations

from typing import Any

import torch
from torch.storage import TypedStorage
from torch.utils import backend_registration

from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Action, Patch, Patches, Row
from simgpu._runtime import world

_stock_new: Any = torch.Tensor.new
_stock_new_tensor: Any = torch.Tensor.new_tensor


def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`tensor.new(...)`: on the tensor's own device."""
    if self.device.type != DEVICE_TYPE:
        return _stock_new(self, *args, **kwargs)
    wanted = kwargs.get("device")
    index = self.device.index if wanted is None else world.resolve(wanted)
    if (
        len(args) == 1
        and isinstance(args[0], (list, tuple))
        and not isinstance(args[0], torch.Size)
    ):
        host = torch.empty(0, dtype=self.dtype, device="cpu").new(*args)
        return host.to(world.device(index).torch_device)
    # C++ makes the device current by our guard, which does nothing where `guard_answers` could not
    # be installed, and asks for it right after.
    with world.MakeCurrent(index):
        return _stock_new(self, *args, **kwargs)


def new_tensor(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`tensor.new_tensor(...)`: on the tensor's own device unless told otherwise."""
    if self.device.type != DEVICE_TYPE or kwargs.get("device") is not None:
        return _stock_new_tensor(self, *args, **kwargs)
    # As in `new`.
    return _stock_new_tensor(self, *args, **{**kwargs, "device": self.device})


def _generate_storage_methods(_: Patches) -> None:
    if not hasattr(TypedStorage, DEVICE_TYPE):
        backend_registration._generate_storage_methods_for_privateuse1_backend(DEVICE_TYPE, [])


_WHY_NEW = "without a device given, the new tensor is on the tensor's own, not on the current one"

PATCHES: tuple[Row, ...] = (
    Patch("torch.Tensor", "new", value=new, why=_WHY_NEW),
    Patch("torch.Tensor", "new_tensor", value=new_tensor, why=_WHY_NEW),
    Action(
        "methods of storages by the name of the device type",
        run=_generate_storage_methods,
        why="as storages have `cuda()` and `is_cuda`; PyTorch generates them only when asked",
        adds=(
            f"torch.storage.TypedStorage.{DEVICE_TYPE}",
            f"torch.storage.TypedStorage.is_{DEVICE_TYPE}",
            f"torch.storage._StorageBase.{DEVICE_TYPE}",
            f"torch.storage._StorageBase.is_{DEVICE_TYPE}",
        ),
    ),
)
