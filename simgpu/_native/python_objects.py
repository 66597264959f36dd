"""CPython objects as C++ sees them: reference counts, slots of types, errors of other threads.

A class of Python that derives from one of pybind11's has two halves. C++ holds its own half only,
so that Python does not see whether the object may still be waited for. The count of references
is in the object of C++.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable
from typing import Any

from torch import distributed

from simgpu._native.memory import WORD, can_read, words

_VALUE, _HOLDER = 2, 3  # words behind the head of the Python half: where the C++ half is, twice
_COUNT = 1  # word of the C++ half: in its lower 32 bits the references, weak ones in the upper


def held_by_cpp(work: Any) -> bool:
    """Whether C++ has references to a Work; True where that is unknown."""
    return not can_count_references() or _count(work) > 1


@functools.cache
def can_count_references() -> bool:
    """Whether what is taken for the count goes up and down with references that C++ has."""
    if not distributed.is_available():
        return False

    class Probe(distributed.Work):
        def __init__(self) -> None:
            super().__init__()

    work: Any = Probe()
    start = _start(work)
    if words[(id(work) >> 3) + _HOLDER] != start or not can_read(start, (_COUNT + 1) * WORD):
        return False
    counts, boxes = [_count(work)], []
    for _ in range(2):
        boxes.append(work.boxed())
        counts.append(_count(work))
    boxes.clear()
    return [*counts, _count(work)] == [1, 2, 3, 1]


def _start(work: Any) -> int:
    return words[(id(work) >> 3) + _VALUE]


def _count(work: Any) -> int:
    return words[(_start(work) >> 3) + _COUNT] & 0xFFFF_FFFF


# Raise an error in another thread, wherever its Python code is.
#
# That is the last way to end a thread which never asks whether it may go on. The error comes
# between two instructions of Python: within a call of C code, such as `time.sleep`, only once that
# is over.

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = [ctypes.c_ulong, ctypes.py_object]
_raise_in.restype = ctypes.c_int


def raise_in_thread(ident: int, error: type[BaseException]) -> None:
    """Raise an error without arguments in the thread of this identifier, unless it has ended."""
    _raise_in(ident, error)


# A Python error that is pending while C++ asks Python something: raised, so that it can be caught.
#
# PyTorch's autograd engine asks the device guard for its type while the error of a user's function
# is pending, and Python code that runs then must take it out first. ctypes raises what is pending
# when a call through `ctypes.pythonapi` ends. So the function here is one of CPython's documented C
# API, and nothing is written. It is no Python function: at the entry of one the handler of a signal
# would run.

raise_pending_error: Callable[[], object] = ctypes.pythonapi.PyErr_Occurred
ctypes.pythonapi.PyErr_Occurred.restype = ctypes.c_void_p
ctypes.pythonapi.PyErr_Occurred.argtypes = []


# Give built-in types a `__str__` or a `__new__`, which Python does not allow.
#
# CPython forbids setattr on built-in types, so the function is put into the type's dictionary, and
# the slot behind `str()` or the call (`tp_str`, `tp_new`: words of the type) gets the value
# in every class with such a method written in Python: a C function that looks the method up. A type
# is only written to if its size and its slot are found in it where this file expects them, and its
# dictionary is the one that `vars` shows; otherwise the type stays as it is.

STR, NEW, _BASICSIZE = 17, 39, 4  # words of a type; the first two are those of every object
_WRAPPED = 6  # word of a method that wraps a slot


class _Written:
    """A class with a `__str__` and a `__new__` in Python, for the sake of its slots."""

    def __new__(cls) -> _Written:
        return super().__new__(cls)

    def __str__(self) -> str:
        return ""


class _Plain:
    """A class without them, whose slots are those of `object`."""


_stock_slot = words[(id(BaseException.__str__) >> 3) + _WRAPPED]
_slot_of_python = words[(id(_Written) >> 3) + STR]
_new_of_python = words[(id(_Written) >> 3) + NEW]
_MakeNew = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.py_object)


def _slot(kind: type, which: int, expected: int) -> int | None:
    """Index in `words` of the slot `which` of a type, if it holds `expected`."""
    at = id(kind) >> 3
    understood = words[at + _BASICSIZE] == kind.__basicsize__ and words[at + which] == expected
    return at + which if understood else None


def _attributes(kind: type) -> dict[str, Any] | None:
    """The dictionary of a type, which `vars` shows and does not allow to change."""
    shown = vars(kind)
    found = gc.get_referents(shown)
    if len(found) != 1 or type(found[0]) is not dict or found[0] != shown:
        return None
    return found[0]


def _forget_lookups(kind: type) -> None:
    """Make the interpreter look attributes of `kind` and its subclasses up anew."""
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _replace(
    kind: type, name: str, which: int, stock: int, ours: int, function: Any
) -> Callable[[], None] | None:
    """Give a type the method `name`, and its slot the function `ours` in place of `stock`.

    Returns what restores both; None, and nothing is changed, where the type is laid out otherwise.
    """
    slot, attributes = _slot(kind, which, stock), _attributes(kind)
    if slot is None or attributes is None:
        return None
    had = {key: value for key, value in attributes.items() if key == name}
    attributes[name] = function
    _forget_lookups(kind)
    words[slot] = ours

    def restore() -> None:
        words[slot] = stock
        del attributes[name]
        attributes.update(had)
        _forget_lookups(kind)

    return restore


def replace_str(kind: type, function: Callable[[Any], str]) -> Callable[[], None] | None:
    """Make `function` make the text of instances of `kind`; returns what restores it, or None.

    `kind` is a built-in type whose text is that of BaseException, and whose classes derived from it
    before keep the stock text, since they have a slot of their own.
    """
    return _replace(kind, "__str__", STR, _stock_slot, _slot_of_python, function)


def replace_new(kind: type, wrap: Callable[[Any], Any]) -> Callable[[], None] | None:
    """Replace calls of `kind` by `wrap(stock)`; returns what restores them, None if impossible.

    `kind` is a built-in type of which no class is derived. `stock` and the function that `wrap`
    returns take the type and the call's arguments. The word of the type that is written is known to
    be the right one if a class with a `__new__` in Python differs there from one without.
    """
    stock = words[(id(kind) >> 3) + NEW]
    plain, of_object = (words[(id(other) >> 3) + NEW] for other in (_Plain, object))
    inherited = plain == of_object != _new_of_python != stock
    if "__new__" not in vars(kind) or not inherited:
        return None
    make = _MakeNew(stock)
    wrapped = staticmethod(wrap(lambda cls, *args, **kw: make(cls, args, kw)))
    return _replace(kind, "__new__", NEW, stock, _new_of_python, wrapped)


def can_change_slots() -> bool:
    """Whether this interpreter allows other texts of built-in errors, or already has them."""
    slots = (_slot(RuntimeError, STR, known) for known in (_stock_slot, _slot_of_python))
    return any(slots) and _attributes(RuntimeError) is not None
