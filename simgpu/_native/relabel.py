"""Zero-copy view of device memory as a CPU tensor and back, by DLPack; no other file does this.

A DLPack capsule describes a tensor's memory and its device. Exporting a tensor,
overwriting the eight bytes that name the device, and importing the capsule again gives a second
tensor over the same memory under another label. Everything else in simgpu moves between a
simulated device and the host by calling `relabel` here.

Layout (dlpack.h, unversioned): a capsule points to a DLManagedTensor, which begins with
    offset 0: void *data    offset 8: int32 device_type, int32 device_id
One capsule is looked at before the first is written to. Where capsules keep their pointer elsewhere
than in CPython, they are asked for it by the documented C API; where the description itself is laid
out otherwise, nothing is written and `relabel` raises UnsupportedError: there is no other way.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable

import torch

from simgpu._native.guard_code import builtin_of, is_possible_here
from simgpu._native.memory import words
from simgpu._util.naming import MAX_DEVICES
from simgpu.errors import DeviceMismatchError, UnsupportedError

_export: Callable[[torch.Tensor], object] = torch._C._to_dlpack
_import: Callable[[object], torch.Tensor] = torch._C._from_dlpack
HOST = 1  # kDLCPU, device 0
_EXTENSION_DEVICE = 12  # kDLExtDev, which torch reads as PrivateUse1
LABELS = tuple(_EXTENSION_DEVICE | index << 32 for index in range(MAX_DEVICES))

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


# The same two steps as instructions, called as a built-in function: rdi is a `bytes` object that
# holds the label behind its head, rsi the capsule, which is returned.
_WRITE_LABEL = bytes.fromhex(
    "f30f1efa"  # endbr64
    "488b4720"  # mov rax, [rdi+32]
    "488b5610"  # mov rdx, [rsi+16]
    "48894208"  # mov [rdx+8], rax
    "48ff06"  # inc qword [rsi], its references
    "4889f0"  # mov rax, rsi
    "c3"  # ret
)
_writers: dict[int, Callable[[object], object]] = {}  # by label; empty where there is no such code


def _relabel_by_code(tensor: torch.Tensor, label: int = HOST) -> torch.Tensor:
    """`_relabel_by_layout`, where instructions of ours can be called."""
    return _import(_writers[label](_export(tensor)))


def _refuse_to_relabel(tensor: torch.Tensor, label: int = HOST) -> torch.Tensor:
    """`relabel` where a capsule does not describe memory as dlpack.h does."""
    raise UnsupportedError(
        f"torch {torch.__version__} describes a tensor's memory otherwise than the unversioned "
        "DLPack does, so simulated devices cannot exist here: use an older PyTorch"
    )


@functools.cache
def _for_this_build(fast: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`fast`; on a build with CUDA it refuses a GPU's tensor, whose memory is not the host's."""
    if not torch._C._has_cuda:
        return fast
    is_on_gpu = torch._C.TensorBase.is_cuda.__get__  # type: ignore[attr-defined]

    def relabel(tensor: torch.Tensor, label: int = HOST) -> torch.Tensor:
        if is_on_gpu(tensor):
            raise DeviceMismatchError(
                "Expected all tensors to be on the same device, but found simulated devices and "
                f"{tensor.device}!"
            )
        return fast(tensor, label)

    return relabel


def _choose(
    export: Callable[[torch.Tensor], object],
) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """The fastest `relabel` that the capsules made by `export` allow."""
    tensor = torch.empty(1, device="cpu")
    capsule = export(tensor)
    description = _get_pointer(capsule, b"dltensor")
    start = description >> 3
    if description % 8 or (words[start], words[start + 1]) != (tensor.data_ptr(), HOST):
        return _refuse_to_relabel
    # A PyCapsule is {refcount, type, pointer, ...} in CPython with the GIL.
    if object.__basicsize__ == 16 and words[(id(capsule) >> 3) + 2] == description:
        if bytes.__basicsize__ == 33 and is_possible_here():
            for label in (HOST, *LABELS):
                writer = builtin_of(_WRITE_LABEL, struct.pack("<q", label))
                if writer is not None:
                    _writers[label] = writer
        by_code = len(_writers) == 1 + MAX_DEVICES
        return _for_this_build(_relabel_by_code if by_code else _relabel_by_layout)
    return _for_this_build(_relabel_by_capsule_api)


relabel: Callable[..., torch.Tensor] = _choose(_export)


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


def is_active() -> bool:
    """Whether capsules keep their pointer where CPython does, so that no C API has to be called."""
    return relabel in map(_for_this_build, (_relabel_by_code, _relabel_by_layout))
