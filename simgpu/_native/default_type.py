"""Make the default tensor type one of a simulated device, in PyTorch's own variable.

`torch.set_default_tensor_type` writes a variable of C++ that all threads share, and from which
`torch.Tensor(2)`, `torch.tensor` and every factory take their device. C++ sets it only to types
that it has made itself, and it makes none for devices from outside. So one of its types for CUDA
reports our backend, for as long as one call of the setter takes. Two fields of that type
are written: whether it is CUDA's, and the number of its backend. That is done only if all of C++'s
dense types hold, in these fields and those around them, what Python reads of the same types.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from simgpu._native.memory import can_read
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import UnsupportedError

set_type: Any = torch._C._set_default_tensor_type
"""PyTorch's own setter."""
device_type: Callable[[], str] = torch._C._get_default_device
"""PyTorch's own getter of the device type."""
_NUMBERS = range(63, 1, -1)  # of backends, which PyTorch counts from 0 (CPU) and 1 (CUDA)


def _fields(first: int) -> type[ctypes.Structure]:
    """What C++ keeps of a type of tensors, behind the `first` bytes that every type has."""

    class Fields(ctypes.Structure):
        _fields_ = [
            ("type", ctypes.c_char * first),
            ("dtype", ctypes.c_void_p),
            ("layout", ctypes.c_void_p),
            ("is_cuda", ctypes.c_bool),
            ("is_xpu", ctypes.c_bool),
            ("name", ctypes.c_char * 64),
            ("backend", ctypes.c_int),
            ("dtype_number", ctypes.c_int),
        ]

    return Fields


def _read(kind: Any) -> Any:
    """The fields of one of PyTorch's types of dense tensors, or None if they are not understood."""
    fields = _fields(type(kind).__basicsize__)
    if not can_read(id(kind), ctypes.sizeof(fields)):
        return None
    found: Any = fields.from_address(id(kind))
    understood = (
        found.dtype == id(kind.dtype)
        and found.layout == id(kind.layout)
        and found.is_cuda == kind.is_cuda
        and found.is_xpu == kind.is_xpu
        and found.name == f"{kind.__module__}.{kind.__name__}".encode()
        and found.backend == int(kind.is_cuda)
    )
    return found if understood else None


@functools.cache
def _types() -> dict[torch.dtype, Any]:
    """PyTorch's types for CUDA by their dtype; none where their memory is not understood."""
    classes: set[Any] = torch._tensor_classes
    dense = [kind for kind in classes if kind.layout == torch.strided]
    numbers: dict[torch.dtype, set[int]] = {}
    for kind in dense:
        fields = _read(kind)
        if fields is None:
            return {}
        numbers.setdefault(kind.dtype, set()).add(fields.dtype_number)
    one_number_each = len({frozenset(found) for found in numbers.values()}) == len(numbers)
    if not one_number_each or any(len(found) != 1 for found in numbers.values()):
        return {}
    return {kind.dtype: kind for kind in dense if kind.is_cuda}


def _set(kind: Any, backend: int) -> None:
    """Call the setter with a type for CUDA that reports `backend` meanwhile."""
    fields = _read(kind)
    if fields is None:
        raise UnsupportedError(f"{kind} has changed in memory: it is no default type")
    try:
        fields.is_cuda, fields.backend = False, backend
        set_type(kind)
    finally:
        fields.is_cuda, fields.backend = True, 1


@functools.cache
def _backend() -> int | None:
    """The number of our backend: the one with which new tensors are on a device of ours.

    The setter refuses the number of any backend that has no storages, and changes nothing then.
    """
    dtype = torch.get_default_dtype()
    kind = _types().get(dtype)
    if kind is None:
        return None
    set_to_cpu()  # which warns, if nothing has yet, that the setter is old
    for number in _NUMBERS:
        try:
            _set(kind, number)
        except (RuntimeError, TypeError, ImportError):
            continue
        here = device_type()
        set_to_cpu()
        if here == DEVICE_TYPE:
            return number
    return None


def set_to_device(dtype: torch.dtype) -> None:
    """Make the default type be that of tensors of `dtype` on the current simulated device.

    Raises:
        TypeError: `dtype` is not of floating-point numbers.
        UnsupportedError: this PyTorch's types are laid out otherwise.
    """
    kind, backend = _types().get(dtype), _backend()
    if kind is None or backend is None:
        raise UnsupportedError(
            f"the default tensor type cannot be one of {DEVICE_TYPE} with torch "
            f"{torch.__version__}: call torch.set_default_dtype({dtype}) and, in each thread, "
            f"torch.set_default_device({DEVICE_TYPE!r})"
        )
    _set(kind, backend)


def set_to_cpu() -> None:
    """Make the default type be that of the CPU, with the default dtype as it is."""
    dtype = torch.get_default_dtype()
    for kind in torch._tensor_classes:
        if kind.dtype == dtype and kind.layout == torch.strided and not kind.is_cuda:
            set_type(kind)


def is_active() -> bool:
    """Whether the default tensor type can be one of a device with this PyTorch."""
    return bool(_types())
