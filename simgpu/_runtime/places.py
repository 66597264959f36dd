"""Where a program asked for something: the innermost line that is neither torch's nor simgpu's.

Nor is it that of a wrapper around a function of torch: `typing_extensions.deprecated`, a context
manager of `contextlib`.
"""

from __future__ import annotations

import functools
import os
import sys
from types import CodeType

import torch

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOREIGN = tuple(
    os.path.abspath(folder) + os.sep for folder in (os.path.dirname(torch.__file__), _PACKAGE)
)
# `warnings.deprecated` stands in `_py_warnings` in newer releases of Python.
_WRAPPING = ("typing_extensions", "contextlib", "functools", "warnings", "_py_warnings")
_WRAPPERS = {vars(sys.modules[name])["__file__"] for name in _WRAPPING if name in sys.modules}

# By address of a code object and place in it; the object is kept, so that no other has its address.
_texts: dict[tuple[int, int], tuple[CodeType, str]] = {}
_MOST_TEXTS = 2**16


def place_of_caller() -> str:
    """The innermost line that is neither of torch nor of simgpu, as "file:line"."""
    frame = sys._getframe(1)
    while _is_foreign(frame.f_code.co_filename) and frame.f_back is not None:
        frame = frame.f_back
    key = id(frame.f_code), frame.f_lasti
    found = _texts.get(key)
    if found is None:
        if len(_texts) >= _MOST_TEXTS:
            _texts.clear()
        text = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        found = _texts[key] = frame.f_code, text
    return found[1]


@functools.cache
def _is_foreign(file: str) -> bool:
    return file in _WRAPPERS or file.startswith(_FOREIGN)
