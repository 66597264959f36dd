"""Methods of the device guard in machine code, for autograd: Ctrl-C cannot end the process there.

For every node of a graph PyTorch asks the device guard for device and stream, for every backward
pass the backend's hooks for a context (torch/csrc/acc/Module.cpp). On its way to a Python backend,
pybind11 turns a name into a string, and there CPython calls the handlers of signals that have come
in. If one raises, as Ctrl-C's does, the process is aborted, since in these functions nothing may be
raised; or a reference to the running frame is lost, and with it all tensors of a step. Python code
comes too late to prevent that.

But the answers are constants (simgpu:0, its default stream, yes), or depend on nothing but the
calling thread (`guard_answers`). So in the tables of virtual functions of the two C++ objects
(`virtual_tables`), those that ask Python are replaced by instructions, here by such as return the
constant. Nothing is replaced unless everything is as expected: Linux
on x86-64, the order of the functions in PyTorch's headers, and memory in which code may run and
answers what it should when it is called. Otherwise Python is asked as before (`_backend`).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from simgpu._naming import PRIVATE_USE_1
from simgpu._native.executable_memory import function_of
from simgpu._native.virtual_tables import Table

# A type of 20, a Device of type 20 and index 0, and the Stream number 0 of that device, which all
# are returned in registers: endbr64; mov eax, 20; xor edx, edx; ret
_FIRST_DEVICE = bytes.fromhex("f30f1efa b814000000 31d2 c3")
# A bool: endbr64; mov eax, 1; ret
_YES = bytes.fromhex("f30f1efa b801000000 c3")


@dataclass(frozen=True)
class VtablePatch:
    """Virtual functions of one C++ object that ask Python, and the code that answers instead.

    `first` are the functions with which the class begins in its header of PyTorch's, where `~`
    stands for the two entries of a destructor.
    """

    header: str
    first: tuple[str, ...]
    replaced: tuple[str, ...]
    code: bytes
    answer: int


_GUARD = VtablePatch(
    header="c10/core/impl/DeviceGuardImplInterface.h",
    first=(
        *("type", "exchangeDevice", "getDevice", "setDevice", "uncheckedSetDevice"),
        *("getStream", "getDefaultStream", "getStreamFromGlobalPool", "getNewStream"),
        "exchangeStream",
    ),
    # All that ask Python but getDevice, which says what the current device is (`callbacks`); of
    # these, `guard_answers` has better ones for those that depend on the calling thread.
    replaced=("type", "exchangeDevice", "getStream", "getNewStream", "exchangeStream"),
    code=_FIRST_DEVICE,
    answer=PRIVATE_USE_1,
)
_HOOKS = VtablePatch(
    header="ATen/detail/AcceleratorHooksInterface.h",
    first=("~", "~", "isBuilt", "isAvailable", "hasPrimaryContext"),
    replaced=("hasPrimaryContext",),
    code=_YES,
    answer=1,
)


def virtual_functions(header: str) -> list[str]:
    """The virtual functions that a header of PyTorch's declares, in their order."""
    path = Path(torch.__file__).with_name("include") / header
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    names = re.findall(r"^ +virtual [^(;]*?(~?)(\w+)\(", text, re.MULTILINE)
    return [entry for tilde, name in names for entry in (["~", "~"] if tilde else [name])]


class Replacement:
    """One virtual function that has become code of ours."""

    def __init__(self, table: Table, position: int, code: Any) -> None:
        self._replace = functools.partial(table.replace, position, code)
        self._put_back = self._replace()

    def use(self, ours: bool = True) -> None:
        """Answer without Python, or by it again."""
        if ours:
            self._put_back = self._replace()
        else:
            self._put_back()


# What was replaced, and what could not be.
replacements: list[Replacement] = []
_left: list[VtablePatch] = []


def _replace(table: Table, patch: VtablePatch) -> None:
    in_order = tuple(virtual_functions(patch.header)[: len(patch.first)]) == patch.first
    code = function_of(patch.code, patch.answer) if in_order else None
    if code is None:
        _left.append(patch)
        return
    for name in patch.replaced:
        position = patch.first.index(name)
        if not table.is_replaced(position):  # by what knows the calling thread
            replacements.append(Replacement(table, position, code))


def install(guard: Table, hooks: Table) -> None:
    """Replace what asks Python, if everything is as expected."""
    _replace(guard, _GUARD)
    _replace(hooks, _HOOKS)


def is_active() -> bool:
    """Whether all of these questions are answered without Python."""
    return bool(replacements) and not _left
