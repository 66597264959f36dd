"""What errors call the devices: by the name that the program knows.

While simulated devices go by the name of CUDA (`_as_cuda`), a text that says "simgpu:1" speaks of
something that the program has never asked for. The errors of `simgpu.errors` are worded when they
are made. Those that PyTorch raises in C++ are of built-in types, and pass no Python code of ours:
they are worded when their text is asked for, by a `__str__` that is lent to those types. Python
does not set attributes of built-in types, so it is put into the dictionary of the type, and into
the slot behind `str()`, a word of the type, what stands there for every class that has a `__str__`
in Python. That word is checked before it is written; where types are laid out otherwise, nothing is
written, and those few texts keep the devices' own name. No call costs more for it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
from collections.abc import Callable
from typing import Any

from simgpu._naming import visible_text
from simgpu._native.dlpack_relabel import words
from simgpu._patches import Patches

# What C++ raises, of types whose text is that of BaseException. Classes that were derived from
# these before have a slot of their own, which is the stock one.
_KINDS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, BufferError)
_BASICSIZE, _STR = 4, 17  # words of a type; the first two are those of every object
_WRAPPED = 6  # word of a method that stands for a slot


def _wording(kind: Any) -> Callable[[BaseException], str]:
    """A `__str__` for `kind`, which words what is the text without it."""

    def __str__(self: BaseException) -> str:
        return visible_text(super(kind, self).__str__())

    return __str__


class _Written:
    """A class with a `__str__` in Python, for the sake of its slot."""

    def __str__(self) -> str:
        return ""


_stock_slot = words[(id(BaseException.__str__) >> 3) + _WRAPPED]
_slot_of_python = words[(id(_Written) >> 3) + _STR]


def _slot(kind: type, expected: int) -> int | None:
    """Index in `words` of the slot behind `str()` of a type, if it holds `expected`."""
    at = id(kind) >> 3
    understood = words[at + _BASICSIZE] == kind.__basicsize__ and words[at + _STR] == expected
    return at + _STR if understood else None


def _attributes(kind: type) -> dict[str, Any]:
    """The dictionary of a type, which `vars` shows and does not let be changed."""
    (attributes,) = gc.get_referents(vars(kind))
    return attributes  # type: ignore[no-any-return]


def _forget_lookups(kind: type) -> None:
    """Let the interpreter look attributes of `kind` and its subclasses up anew."""
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def install(patches: Patches) -> None:
    """Let built-in errors be worded too, until everything is undone or the process ends."""
    patches.then(_undo)
    for kind in _KINDS:
        slot = _slot(kind, _stock_slot)
        if slot is not None:
            _attributes(kind)["__str__"] = _wording(kind)
            _forget_lookups(kind)
            words[slot] = _slot_of_python


def _undo() -> None:
    for kind in _KINDS:
        slot = _slot(kind, _slot_of_python)
        if slot is not None:
            words[slot] = _stock_slot
            del _attributes(kind)["__str__"]
            _forget_lookups(kind)


atexit.register(_undo)
