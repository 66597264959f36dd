"""What errors call the devices: by the name that the program knows.

While simulated devices go by the name of CUDA (`_as_cuda`), a text that says "simgpu:1" speaks of
something that the program has never asked for. The errors of `simgpu.errors` are worded when they
are made. Those that PyTorch raises in C++ are of built-in types, and pass no Python code of ours:
they are worded when their text is asked for, by the slot that `str(error)` looks at. That slot is
a word of the type that Python cannot set, so it is checked before it is written; where types are
laid out otherwise, those few texts keep the devices' own name. No call costs more for it.
"""

from __future__ import annotations

import atexit
import ctypes
import re
from typing import Any

from simgpu import _world
from simgpu._patches import Patches
from simgpu._relabel import DEVICE_TYPE, _words

# Where a text names a device type as a program would write it, and where as a trade name.
_CODE = re.compile(
    rf"""(?x) \b{DEVICE_TYPE}(?= :\d | ['"] | \ (?:device|tensor|backend|event)s?\b )
    | (?<=torch\.) {DEVICE_TYPE}\b | (?<=\ type\ ) {DEVICE_TYPE}\b
    | (?<=accelerator\ ) {DEVICE_TYPE}\b"""
)
_NAME = re.compile(
    rf"""(?x) (?<=wrapper_) {DEVICE_TYPE}(?=_) | \b{DEVICE_TYPE}(?= [A-Z] | \ error | \ out\ of )
    | (?<=re-initialize\ ) {DEVICE_TYPE}\b | (?<=To\ use\ ) {DEVICE_TYPE}\b"""
)


def told(text: str) -> str:
    """`text` as the program may read it: with the devices by the name that it knows."""
    if len(_world.names) == 1 or DEVICE_TYPE not in text:
        return text
    return _NAME.sub("CUDA", _CODE.sub("cuda", text))


# What C++ raises, of types whose text is that of BaseException. Classes derived from these have a
# slot of their own, which is the stock one.
_KINDS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, BufferError)
_BASICSIZE, _STR = 4, 17  # words of a type; the first two are those of every object
_WRAPPED = 6  # word of a method that stands for a slot
_stock_str: Any = BaseException.__str__


def _str(error: BaseException) -> Any:
    text = _stock_str(error)
    try:
        return told(text)
    except BaseException:  # nothing may leave a slot, and the text as it is will do
        return text


_hook = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_str)
_stock_address = _words[(id(_stock_str) >> 3) + _WRAPPED]
_hook_address = ctypes.cast(_hook, ctypes.c_void_p).value or 0


def _slot(kind: type, expected: int) -> int | None:
    """Index in `_words` of the slot behind `str()` of a type, if it holds `expected`."""
    at = id(kind) >> 3
    understood = _words[at + _BASICSIZE] == kind.__basicsize__ and _words[at + _STR] == expected
    return at + _STR if understood else None


def _exchange(old: int, new: int) -> None:
    for kind in _KINDS:
        slot = _slot(kind, old)
        if slot is not None:
            _words[slot] = new


def install(patches: Patches) -> None:
    """Let built-in errors be worded too, until everything is undone or the process ends."""
    _exchange(_stock_address, _hook_address)
    patches.then(_undo)


def _undo() -> None:
    _exchange(_hook_address, _stock_address)


atexit.register(_undo)
