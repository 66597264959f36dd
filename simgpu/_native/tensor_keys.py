"""Let `tensor.data = other` put the memory of a device into a tensor of the CPU, or the other way.

PyTorch assigns the data of one tensor to another where their dispatch keys are of one kind, and
knows the CPU and CUDA for such, but no device type from outside. It compares the keys that each
tensor has in C++ (TensorImpl), a word, and then copies those of the other. For that one check, the
word of the tensor that is assigned to is made the other's before. Where it is in a tensor is looked
for, by what `torch._C._dispatch_keys` says of a few; it is compared again before it is written to.
Where it is not found, nothing is written and UnsupportedError says so: modules do not move then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._native.process_memory import WORD, can_read, words
from simgpu.errors import UnsupportedError

Tensor = torch.Tensor
_SEARCHED = 24  # words; a TensorImpl has more
_SIGNED = 1 << 64
_keys_of: Callable[[Tensor], Any] = torch._C._dispatch_keys


def _bits(*names: str) -> int:
    """Keys as bits of a word; one of a backend has a bit for that and one for what it does."""
    found = 0
    for name in names:
        found |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return found


# How a tensor holds its elements: what `data` is assigned from has to be of the same kind.
_KINDS = _bits("Dense", "Quantized", "Sparse", "SparseCsr", "NestedTensor")
_HOST, _DEVICE = (_bits(name) & ~_bits("Dense") for name in ("CPU", "PrivateUse1"))
_BACKENDS = _HOST | _DEVICE
_PYTHON = _bits("Python", "PythonTLSSnapshot")  # of subclasses that see operators


def _keys(tensor: Tensor) -> int:
    """The keys of a tensor as the signed word that `words` shows."""
    raw: int = _keys_of(tensor).raw_repr()
    return raw - _SIGNED if raw >> 63 else raw


def _address(tensor: Tensor) -> int:
    return tensor._cdata


@functools.cache
def _offset() -> int | None:
    """The word of a tensor that holds its keys."""
    probes = [
        torch.empty(0, device="cpu"),
        torch.empty(0, device="meta", dtype=torch.complex64).conj(),
        torch.empty(0, 0, device="cpu").to_sparse(),
    ]
    if not all(can_read(_address(probe), WORD * _SEARCHED) for probe in probes):
        return None
    found = [
        at
        for at in range(_SEARCHED)
        if all(words[(_address(probe) >> 3) + at] == _keys(probe) for probe in probes)
    ]
    return found[0] if len(found) == 1 else None


def are_alike(tensor: Tensor, other: Tensor) -> bool:
    """Whether both are of one kind, on the CPU or on a device.

    Not so where `other` alone is of a subclass that sees operators, which may have no memory.
    """
    own, theirs = _keys_of(tensor).raw_repr(), _keys_of(other).raw_repr()
    return (
        own & _BACKENDS in (_HOST, _DEVICE)
        and theirs & _BACKENDS in (_HOST, _DEVICE)
        and own & _KINDS == theirs & _KINDS != 0
        and tensor.layout is other.layout
        and not theirs & ~own & _PYTHON
    )


def is_active() -> bool:
    """Whether data can be assigned between the CPU and a device."""
    return _offset() is not None


def assign(tensor: Tensor, other: Tensor, set_data: Callable[[Tensor, Tensor], None]) -> None:
    """`set_data(tensor, other)`, for tensors of one kind of which one is on a device.

    Raises what `set_data` raises, and leaves the tensor as it was then.
    """
    offset, own, theirs = _offset(), _keys(tensor), _keys(other)
    at = (_address(tensor) >> 3) + (offset or 0)
    if offset is None or words[at] != own:
        raise UnsupportedError(
            f"torch {torch.__version__} holds tensors otherwise than is known, so the data of one "
            f"cannot move between the CPU and a {DEVICE_TYPE} device: make a new tensor with .to()"
        )
    moved = False
    try:
        words[at] = theirs
        set_data(tensor, other)
        moved = True
    finally:
        moved = moved or tensor.device == other.device  # an interrupt comes before or after
        words[at] = (theirs & ~_PYTHON) | (own & _PYTHON) if moved else own
