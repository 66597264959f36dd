"""`Tensor.new` and `new_tensor`: on the tensor's own device."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.storage import TypedStorage
from torch.utils import backend_registration

from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import world

_stock_new: Any = torch.Tensor.new
_stock_new_tensor: Any = torch.Tensor.new_tensor


@contextlib.contextmanager
def _current(index: int) -> Any:
    outer = world.current_device()
    world.set_current_device(index)
    try:
        yield
    finally:
        world.set_current_device(outer)


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
    # PyTorch makes the tensor on the current device, after a guard that Python does not see.
    with _current(index):
        return _stock_new(self, *args, **kwargs)


def new_tensor(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`tensor.new_tensor(...)`: on the tensor's own device unless told otherwise."""
    if self.device.type != DEVICE_TYPE or kwargs.get("device") is not None:
        return _stock_new_tensor(self, *args, **kwargs)
    # PyTorch means the tensor's device, and asks a guard for it that knows one device only.
    return _stock_new_tensor(self, *args, **{**kwargs, "device": self.device})


def install() -> None:
    """Let tensors and storages have the methods that they have for CUDA."""
    tensor_type: Any = torch.Tensor
    tensor_type.new = new
    tensor_type.new_tensor = new_tensor
    if not hasattr(TypedStorage, DEVICE_TYPE):
        backend_registration._generate_storage_methods_for_privateuse1_backend(DEVICE_TYPE, [])
