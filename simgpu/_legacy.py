"""What PyTorch decides by a list of the device types that it knows, extended by ours.

Old ways to make tensors (`torch.simgpu.FloatTensor`, `Tensor.new`) and storages
(`torch.simgpu.FloatStorage`), and the name of a tensor's device in DLPack.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.storage import TypedStorage, _LegacyStorage
from torch.utils import backend_registration, dlpack
from torch.utils.dlpack import DLDeviceType

from simgpu import _world
from simgpu._growth import lend
from simgpu._relabel import DEVICE_TYPE

_stock_new: Any = torch.Tensor.new
_stock_new_tensor: Any = torch.Tensor.new_tensor
_stock_dlpack: Any = torch.Tensor.__dlpack__
_stock_dlpack_device: Any = torch.Tensor.__dlpack_device__

DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}


@contextlib.contextmanager
def _current(index: int) -> Any:
    outer = _world.current_device()
    _world.set_current_device(index)
    try:
        yield
    finally:
        _world.set_current_device(outer)


def _new(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`tensor.new(...)`: on the tensor's own device."""
    if self.device.type != DEVICE_TYPE:
        return _stock_new(self, *args, **kwargs)
    wanted = kwargs.get("device")
    index = self.device.index if wanted is None else _world.resolve(wanted)
    if (
        len(args) == 1
        and isinstance(args[0], (list, tuple))
        and not isinstance(args[0], torch.Size)
    ):
        host = torch.empty(0, dtype=self.dtype, device="cpu").new(*args)
        return host.to(_world.device(index).torch_device)
    # PyTorch makes the tensor on the current device, after a guard that Python does not see.
    with _current(index):
        return _stock_new(self, *args, **kwargs)


def _new_tensor(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`tensor.new_tensor(...)`: on the tensor's own device unless told otherwise."""
    if self.device.type != DEVICE_TYPE or kwargs.get("device") is not None:
        return _stock_new_tensor(self, *args, **kwargs)
    # PyTorch means the tensor's device, and asks a guard for it that knows one device only.
    return _stock_new_tensor(self, *args, **{**kwargs, "device": self.device})


def _dlpack_device(self: torch.Tensor) -> Any:
    """`tensor.__dlpack_device__()`: an extension device, and its index."""
    if self.device.type != DEVICE_TYPE:
        return _stock_dlpack_device(self)
    return DLDeviceType.kDLExtDev, self.device.index


def _lent(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` as DLPack may have it.

    A capsule points into the memory of the tensor that it keeps: that has to be one which nobody
    can put on other memory.
    """
    if tensor.device.type != DEVICE_TYPE:
        return tensor
    lend(tensor.untyped_storage())
    return tensor if tensor.requires_grad else tensor.detach()  # PyTorch refuses the former


def _dlpack(self: torch.Tensor, **options: Any) -> Any:
    """`tensor.__dlpack__(...)`."""
    return _stock_dlpack(_lent(self), **options)


def _to_dlpack(tensor: torch.Tensor) -> Any:
    """`torch.to_dlpack(tensor)`."""
    return torch._C._to_dlpack(_lent(tensor))


class TensorType(type):
    """The type of `torch.simgpu.FloatTensor` and its like."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, device: Any = None) -> Any:
        here = torch.device(DEVICE_TYPE) if device is None else torch.device(device)
        return torch.empty(0, dtype=cls.dtype, device=here).new(*args)

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == DEVICE_TYPE
            and instance.dtype == cls.dtype
        )


_types: dict[str, Any] = {}
_storage_type: Any = type(_LegacyStorage)


def find(name: str, home: str = DEVICE_TYPE) -> Any:
    """`torch.<home>.<name>`, where that is an old type of tensors or storages, or None."""
    prefix = name.removesuffix("Tensor").removesuffix("Storage")
    module = f"torch.{home}"
    path = f"{module}.{name}"
    if path not in _types and prefix != name and prefix in DTYPES:
        dtype = DTYPES[prefix]
        members = {"__module__": module, "__qualname__": name, "dtype": dtype, "_dtype": dtype}
        if name.endswith("Tensor"):
            # `tensor.type(torch.simgpu.LongTensor)` reads the whole path from the type's name.
            _types[path] = TensorType(path, (), members)
        else:
            _types[path] = _storage_type(name, (_LegacyStorage,), members)
    return _types.get(path)


def install() -> None:
    """Let tensors and storages have the methods that they have for CUDA."""
    tensor_type: Any = torch.Tensor
    tensor_type.new = _new
    tensor_type.new_tensor = _new_tensor
    tensor_type.__dlpack__ = _dlpack
    tensor_type.__dlpack_device__ = _dlpack_device
    for module in (torch, dlpack):
        setattr(module, "to_dlpack", _to_dlpack)  # noqa: B010  # neither module declares it
    if not hasattr(TypedStorage, DEVICE_TYPE):
        backend_registration._generate_storage_methods_for_privateuse1_backend(DEVICE_TYPE, [])
