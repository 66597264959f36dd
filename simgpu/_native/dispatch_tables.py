"""Make the dispatcher call the CPU's own kernel for a device's tensors, without Python in between.

Operators that only look at sizes and strides, such as `view`, need nothing of ours: their kernel of
C++ does on a tensor of a device what it does on one of the CPU. PyTorch has no way to register a
kernel of C++ from Python. But each operator holds a table with an entry of five words for each
dispatch key: {functor, function of boxed arguments, two of unboxed arguments, tokens}. So a kernel
of Python is registered first. It says that the operator is supported, and is there again whenever
PyTorch fills the table anew. Then the first four words of the CPU's entry are copied over ours.

Where the entries are is found with an operator of our own, by the words of it that change when it
gets a kernel for the CPU, for CUDA and for devices. In each table that is written to, our entry has
to hold what a kernel of Python is entered as, and the CPU's a kernel of C++. Otherwise nothing is
written, and the kernel of Python runs.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple

import torch

from simgpu._native.memory import WORD, can_read, words

_SEARCHED = 512  # words of an operator, of which the first 60 entries take 300
_TRIES = 8
_PROBE = "simgpu_probe"  # the namespace of an operator of our own
_COPIED = 4  # words of an entry; the fifth belongs to the entry itself


class _Places(NamedTuple):
    """Where the entries for the CPU and for devices begin, in words; and a function."""

    cpu: int
    device: int
    python: int  # the function of boxed arguments that calls a kernel of Python


def _address(handle: object) -> int | None:
    """The address of an operator in C++, for the handle of an `OpOverload`."""
    holder = words[(id(handle) >> 3) + 2]  # pybind11 keeps the address behind an object's head
    if not can_read(holder, WORD):
        return None
    address = words[holder >> 3]
    return address if can_read(address, 4096) else None


def _snapshot(address: int) -> tuple[int, ...]:
    return struct.unpack(f"<{_SEARCHED}q", ctypes.string_at(address, WORD * _SEARCHED))


def _changed(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    """Where a word has changed, with an address behind it: maybe functor and function."""
    words_of = enumerate(zip(before, after[:-1], strict=False))
    return [at for at, (old, new) in words_of if old != new and after[at + 1]]


def _find_places() -> _Places | None:
    """Look in operators of our own, each in other memory than those before it."""
    library = torch.library.Library(_PROBE, "FRAGMENT")  # type: ignore[no-untyped-call]
    try:
        found = (_look(library, f"entries{attempt}") for attempt in range(_TRIES))
        return next((places for places in found if places is not None), None)
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
        del library  # torch.library looks into its namespace once more when a library dies
        vars(torch.ops).pop(_PROBE, None)


def _look(library: torch.library.Library, name: str) -> _Places | None:
    library.define(f"{name}(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    address = _address(getattr(getattr(torch.ops, _PROBE), name).default._handle)
    if address is None:
        return None
    shots = [_snapshot(address)]
    for key in ("CPU", "CUDA", "PrivateUse1"):
        library.impl(name, lambda x: x, key)  # type: ignore[no-untyped-call]
        shots.append(_snapshot(address))
    # The memory behind the operator may change as well: the places have to fit each other.
    pairs = product(_changed(shots[0], shots[1]), _changed(shots[1], shots[2]))
    fitting = [places for cpu, cuda in pairs if (places := _places_of(shots, cpu, cuda))]
    return fitting[0] if len(fitting) == 1 else None


def _places_of(shots: list[tuple[int, ...]], cpu: int, cuda: int) -> _Places | None:
    """The places, if the entries of the CPU and of CUDA begin at these words."""
    number: Any = int  # of a dispatch key
    host = number(torch._C.DispatchKey.CPU)
    entries, rest = divmod(cuda - cpu, number(torch._C.DispatchKey.CUDA) - host)
    device = cpu + entries * (number(torch._C.DispatchKey.PrivateUse1) - host)
    if rest or entries <= _COPIED or not 0 < device < _SEARCHED - _COPIED:
        return None
    # Devices have a kernel for all operators, of Python as well, and so has CUDA while it is
    # simulated: only the functor is another one.
    python = shots[1][cpu + 1]
    same = shots[2][cuda + 1] == shots[3][device + 1] == python
    fits = same and shots[2][device] != shots[3][device] and can_read(python & -WORD, WORD)
    return _Places(cpu, device, python) if fits else None


# The operators whose kernel of C++ runs on devices' tensors.
written: list[str] = []


def use_cpu_kernels(operators: Iterable[torch._ops.OpOverload]) -> None:
    """Enter the CPU's kernels for devices; the operators have kernels of Python for both by now."""
    places = _find_places()
    if places is None:
        return
    for operator in operators:
        address = _address(operator._handle)
        if address is None:
            continue
        cpu, device = (address >> 3) + places.cpu, (address >> 3) + places.device
        # Only a kernel of C++ can be called with unboxed arguments: sizes as numbers, or as SymInt.
        unboxed = [any((words[entry + 2], words[entry + 3])) for entry in (cpu, device)]
        if words[device + 1] != places.python or unboxed != [True, False]:
            continue
        words[(words[cpu] >> 3) + 1] += 1  # the functor has one more user
        for word in range(_COPIED):
            words[device + word] = words[cpu + word]
        written.append(operator._name)


def is_active() -> bool:
    """Whether any operator has been given the CPU's kernel."""
    return bool(written)
