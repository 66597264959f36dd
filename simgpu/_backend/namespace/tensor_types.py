"""The legacy types `torch.simgpu.FloatTensor` and `torch.simgpu.FloatStorage`, for each dtype.

`torch.cuda` has the same, made in C++ for the device types that PyTorch comes with.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.storage import _LegacyStorage

from simgpu._util.naming import DEVICE_TYPE, visible_text

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

_NO_LONGER = (
    "The torch.{0}.*DtypeTensor constructors are no longer recommended. It's best to use methods "
    "such as torch.tensor(data, dtype=*, device='{0}') to create tensors."
)
_warned: list[bool] = []  # as in PyTorch: once in a process


class TensorType(type):
    """Metaclass of `torch.simgpu.FloatTensor`: a call makes a tensor, no instance of the class."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, device: Any = None) -> Any:
        if not _warned:
            _warned.append(True)
            warnings.warn(_NO_LONGER.format(cls.__module__.removeprefix("torch.")), stacklevel=2)
        with torch._C.DisableTorchFunction():  # C++ makes those of torch.cuda, unseen by modes
            here = torch.device(DEVICE_TYPE if device is None else device)
            return torch.empty(0, dtype=cls.dtype, device=here).new(*args)

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == DEVICE_TYPE
            and instance.dtype == cls.dtype
        )


_types: dict[str, Any] = {}
_storage_type: Any = type(_LegacyStorage)


def find(name: str, home: str | None = None) -> Any:
    """`torch.<home>.<name>`, where that is an old type of tensors or storages, or None.

    Without a `home`, the one that the program knows: C++ looks for storages in torch.simgpu.
    """
    home = home or visible_text(f"torch.{DEVICE_TYPE}").removeprefix("torch.")
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
