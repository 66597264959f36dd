"""Find the C++ objects behind our device guard and hooks, and let the guard answer for CUDA too.

PyTorch keeps the guards of all device types in an array that libc10 exports by name. A Python
object that stands for a C++ one holds its address in the first word after the object's head; that
this is so is seen by the guard, whose address the array has, and by the classes that both objects
name. Where one of these does not hold, nothing is written: PyTorch asks the Python objects, as it
does by itself, and what only C++ can answer (the current device in `tensor.to("simgpu")`,
`pin_memory=True`, "cuda" in C++) stays as PyTorch has it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from simgpu._naming import PRIVATE_USE_1
from simgpu._native.c10_library import library
from simgpu._native.process_memory import words
from simgpu._native.virtual_tables import Table, class_name

_CUDA = 1  # the device type, as C++ numbers it
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # the guards, by device type

# The tables that guard and hooks were given, in this order; empty where they were not understood.
tables: list[Table] = []


def _guards() -> Any:
    """Addresses of the registered guards by device type, or None where they cannot be found."""
    found = library()
    try:
        return found and (ctypes.c_int64 * (PRIVATE_USE_1 + 1)).in_dll(found, _REGISTRY)
    except ValueError:
        return None


def _in_python_object(instance: object) -> int:
    """What should be the address of the C++ object that a Python object stands for."""
    return words[(id(instance) >> 3) + object.__basicsize__ // 8]


def replace_vtables(guard: object, hooks: object) -> tuple[Table, Table] | None:
    """Give the registered guard and hooks tables of their own, or None where they are not found."""
    guards = _guards()
    if guards is None or _in_python_object(guard) != guards[PRIVATE_USE_1]:
        return None
    addresses = (_in_python_object(guard), _in_python_object(hooks))
    for address, expected in zip(addresses, ("DeviceGuard", "Hooks"), strict=True):
        name = class_name(address)
        if name is None or expected not in name:
            return None
    tables[:] = [Table(address) for address in addresses]
    return tables[0], tables[1]


def use_guard_for_cuda() -> Callable[[], None] | None:
    """Let questions about a CUDA device go to our guard; returns what undoes it, None if it cannot.

    C++ asks the guard of a device that is named, in places where it can only end the process if
    there is none.
    """
    guards = _guards()
    if guards is None or not tables:  # without tables our guard was not found in the array
        return None
    stock, guards[_CUDA] = guards[_CUDA], guards[PRIVATE_USE_1]

    def undo() -> None:
        guards[_CUDA] = stock

    return undo


def is_active() -> bool:
    """Whether guard and hooks have tables of their own."""
    return bool(tables)
