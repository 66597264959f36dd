"""Where memory crosses a device label: the only file that may do so.

A DLPack capsule describes a tensor's memory and says which device it lies on. Exporting a tensor,
overwriting the eight bytes that name the device, and importing the capsule again gives a second
tensor over the same memory under another label. Everything else in simgpu moves between a
simulated device and the host by calling `relabel` here.

Layout (dlpack.h, unversioned): a capsule points to a DLManagedTensor, which begins with
    offset 0: void *data    offset 8: int32 device_type, int32 device_id
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from simgpu._naming import MAX_DEVICES

_export: Callable[[torch.Tensor], object] = torch._C._to_dlpack
_import: Callable[[object], torch.Tensor] = torch._C._from_dlpack
HOST = 1  # kDLCPU, device 0
_EXTENSION_DEVICE = 12  # kDLExtDev, which torch reads as PrivateUse1
LABELS = tuple(_EXTENSION_DEVICE | index << 32 for index in range(MAX_DEVICES))

# This process's memory as 8-byte words: indexing it is four times faster than making a ctypes
# object for every address, and this file is on the path of every operator.
words = (ctypes.c_int64 * (1 << 54)).from_address(0)

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _relabel_by_capsule_api(tensor: torch.Tensor, label: int = HOST) -> torch.Tensor:
    """`relabel` by the documented C API, for interpreters whose capsules are laid out otherwise."""
    capsule = _export(tensor)
    words[(_get_pointer(capsule, b"dltensor") >> 3) + 1] = label
    return _import(capsule)


def _relabel_by_layout(tensor: torch.Tensor, label: int = HOST) -> torch.Tensor:
    """Return a tensor over the same memory that claims to be on the device `label`.

    The result shares the memory but neither autograd history, version counter nor conjugate and
    negative bits; it keeps shape, strides and dtype. Its storage begins at the tensor's first
    element.
    """
    capsule = _export(tensor)
    words[(words[(id(capsule) >> 3) + 2] >> 3) + 1] = label
    return _import(capsule)


def _capsules_hold_their_pointer_in_the_third_word() -> bool:
    """Whether a PyCapsule is {refcount, type, pointer, ...}, as in CPython with the GIL."""
    if object.__basicsize__ != 16:
        return False
    capsule = _export(torch.empty(1))
    return bool(words[(id(capsule) >> 3) + 2] == _get_pointer(capsule, b"dltensor"))


relabel = (
    _relabel_by_layout
    if _capsules_hold_their_pointer_in_the_third_word()
    else _relabel_by_capsule_api
)


def host_alias(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the memory of `tensor` that keeps its conjugate and negative bits."""
    if tensor.is_cpu:
        return tensor
    alias = relabel(tensor, HOST)
    if tensor.is_conj():
        alias = torch._conj(alias)
    if tensor.is_neg():
        alias = torch._neg_view(alias)
    return alias
