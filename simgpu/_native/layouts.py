"""Words of C++ objects that simgpu writes: of storages, generators and tensors.

A storage of a simulated device grows and shrinks in place by changing memory with another storage:
five words of the two C++ objects (StorageImpl) are exchanged, or the one with the size is set.
Where those words are is looked for, in two storages of different sizes made for that, by what they
must hold: address, device and size, as Python reports them for the same storage. They are compared
again in each storage before it is written to. Where they are not found, nothing is written and
UnsupportedError says so; everything but resizing works.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from simgpu._native.memory import (
    CPU_BITS,
    DEVICE_BITS,
    WORD,
    can_read,
    device_bits,
    offset_of,
    words,
)
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import UnsupportedError

_StorageBase: Any = torch._C.StorageBase

# A StorageImpl holds {data, owner, function that frees it, device, size in bytes}: five words.
_DATA, _DEVICE, _SIZE, _MEMORY_WORDS = 0, 3, 4, 5


def _holds_memory(at: int, storage: torch.UntypedStorage) -> bool:
    """Whether the five words at `at` say what `storage` says of itself."""
    return (
        words[at + _DATA] == storage.data_ptr()
        and words[at + _DEVICE] & DEVICE_BITS == device_bits(storage.device)
        and words[at + _SIZE] == storage.nbytes()
    )


@functools.cache
def memory_offset() -> int | None:
    """How many words into a StorageImpl its memory is described, or None."""
    storages = [_StorageBase.__new__(torch.UntypedStorage, nbytes) for nbytes in (24, 40)]
    return offset_of(storages, 12, _holds_memory)


def swap_memory(
    one: torch.UntypedStorage, other: torch.UntypedStorage, state: Any, memory: object
) -> None:
    """Swap the memory of two storages of one device, and set `state.memory` to `memory`.

    A signal handler runs before all of it or after all of it: CPython calls handlers where a
    function begins, a call returns or a loop repeats, and the last two lines do none of these.

    Raises UnsupportedError, and changes nothing, where this PyTorch's storages are not understood.
    """
    offset = memory_offset()
    starts = [] if offset is None else [(s._cdata >> 3) + offset for s in (one, other)]
    understood = [_holds_memory(start, s) for start, s in zip(starts, (one, other), strict=False)]
    if understood != [True, True] or one.device != other.device:
        raise UnsupportedError(
            f"a {DEVICE_TYPE} storage cannot be resized with torch {torch.__version__}, whose "
            "storages have a memory layout that simgpu does not know: make a new tensor instead"
        )
    a, b = starts
    c, d = a + _MEMORY_WORDS, b + _MEMORY_WORDS
    words[a:c], words[b:d] = words[b:d], words[a:c]  # type: ignore[assignment]
    state.memory = memory


def set_size(storage: torch.UntypedStorage, nbytes: int) -> None:
    """Make a storage say that it has only the first `nbytes` of its bytes.

    Raises UnsupportedError, and changes nothing, where that is not possible.
    """
    offset = memory_offset()
    start = (storage._cdata >> 3) + (offset or 0)
    if offset is None or not _holds_memory(start, storage) or not 0 <= nbytes <= storage.nbytes():
        raise UnsupportedError(f"a storage of {storage.nbytes()} bytes cannot say it has {nbytes}")
    words[start + _SIZE] = nbytes


# Overwrite the device of a CPU `torch.Generator`, so that C++ takes it for a simulated device's.
#
# PyTorch makes generators in C++ for the device types that it knows. One for a simulated device
# (`simgpu._backend.generators`) is a CPU generator in which the word that names its device is
# overwritten, so that the host's kernels refuse it in PyTorch's own words. The word is looked for,
# once, in a generator made for that: it holds the CPU's bits in front of the CPU's dispatch keys,
# and a device written there is the one that the generator then names. Where there is no such word,
# generators go on as the CPU's; then `simgpu._core.device_generator` distinguishes them.


@functools.cache
def device_offset() -> int | None:
    """How many words into a generator its device is, or None."""
    return offset_of([torch._C.Generator()], 16, _holds_device)


def _holds_device(at: int, scratch: Any) -> bool:
    """Whether the word at `at` is the device of a CPU generator, which is written for a moment."""
    word = words[at]
    key_set = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU).raw_repr()
    if word & DEVICE_BITS != CPU_BITS or words[at + 1] != key_set:
        return False
    wanted = torch.device(DEVICE_TYPE, 5)
    words[at] = word & ~DEVICE_BITS | device_bits(wanted)
    written: bool = scratch.device == wanted
    words[at] = word
    return written


def label_generator(generator: Any, device: torch.device) -> bool:
    """Give a CPU generator `device` as its device; the host's kernels then refuse it.

    Returns whether that was possible; if not, nothing was changed.
    """
    offset = device_offset()
    if offset is None:
        return False
    at = (generator._cdata >> 3) + offset
    if words[at] & DEVICE_BITS != CPU_BITS:
        return False
    words[at] = words[at] & ~DEVICE_BITS | device_bits(device)
    return True


# Write a number to an address that a caller of a C function gave, as `int *out` in C.


def write_word(address: int, value: int) -> None:
    """Write an unsigned number of 64 bits to `address`; raises ValueError where none fits."""
    if not can_read(address, WORD):
        raise ValueError(f"no number of {WORD} bytes can be written to {address:#x}")
    ctypes.c_uint64.from_address(address).value = value


# Make `tensor.data = other` put the memory of a device into a tensor of the CPU, or the other way.
#
# PyTorch assigns the data of one tensor to another where their dispatch keys have one kind, and
# knows the CPU and CUDA for such, but no device type from outside. It compares the keys that each
# tensor has in C++ (TensorImpl), a word, and then copies those of the other. For that one check,
# the word of the tensor that is assigned to is made the other's before. Where it is in a tensor is
# looked for, by what `torch._C._dispatch_keys` says of a few; it is compared again before it is
# written to. Where it is not found, nothing is written and UnsupportedError says so: modules do not
# move then.

Tensor = torch.Tensor
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
_HOST_KEYS, _DEVICE_KEYS = (_bits(name) & ~_bits("Dense") for name in ("CPU", "PrivateUse1"))
_BACKENDS = _HOST_KEYS | _DEVICE_KEYS
_PYTHON = _bits("Python", "PythonTLSSnapshot")  # of subclasses that see operators


def _keys(tensor: Tensor) -> int:
    """The keys of a tensor as the signed word that `words` shows."""
    raw: int = _keys_of(tensor).raw_repr()
    return raw - _SIGNED if raw >> 63 else raw


@functools.cache
def keys_offset() -> int | None:
    """How many words into a tensor its keys are, or None."""
    probes = [
        torch.empty(0, device="cpu"),
        torch.empty(0, device="meta", dtype=torch.complex64).conj(),
        torch.empty(0, 0, device="cpu").to_sparse(),
    ]
    return offset_of(probes, 24, lambda at, probe: words[at] == _keys(probe))


def are_alike(tensor: Tensor, other: Tensor) -> bool:
    """Whether both have the same kind, on the CPU or on a device.

    Not so where only `other` has a subclass that sees operators, which may have no memory.
    """
    own, theirs = _keys_of(tensor).raw_repr(), _keys_of(other).raw_repr()
    return (
        own & _BACKENDS in (_HOST_KEYS, _DEVICE_KEYS)
        and theirs & _BACKENDS in (_HOST_KEYS, _DEVICE_KEYS)
        and own & _KINDS == theirs & _KINDS != 0
        and tensor.layout is other.layout
        and not theirs & ~own & _PYTHON
    )


def assign(tensor: Tensor, other: Tensor, set_data: Callable[[Tensor, Tensor], None]) -> None:
    """`set_data(tensor, other)`, for tensors of one kind of which one is on a device.

    Raises what `set_data` raises, and leaves the tensor as it was then.
    """
    offset, own, theirs = keys_offset(), _keys(tensor), _keys(other)
    at = (tensor._cdata >> 3) + (offset or 0)
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
