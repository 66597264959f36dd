"""Where a program asked for something: the innermost line that is neither torch's nor simgpu's."""

from __future__ import annotations

import os
import sys

import torch

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FOREIGN = tuple(
    os.path.abspath(folder) + os.sep for folder in (os.path.dirname(torch.__file__), _PACKAGE)
)


def place_of_caller() -> str:
    """The innermost line that is neither of torch nor of simgpu, as "file:line"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FOREIGN):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
